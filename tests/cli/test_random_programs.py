"""The commands end well on every program, and a layout that a search writes is accepted as any other."""

from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory

from mtfc.cli import main
from tests.generators.programs import Generated, programs
from tests.generators.scope import Options
from tests.properties.campaign import holds_for

COMMANDS = """\
search {0}/model.mtf --target tpu_v2 --devices 4 --budget 1 -o {0}/rules.mtf
search {0}/model.mtf --target k80_cluster --devices 4 --budget 1 --objective serial --storage --format json
search {0}/model.mtf --target p2_8xlarge --devices 8 --budget 1 --objective memory
search {0}/model.mtf --target p2_8xlarge --devices 4 --budget 1 --space tiling -o {0}/tiling.mtf --export {0}/problem.json
search {0}/model.mtf --target p100_cluster --devices 4 --budget 1 --space soap -o {0}/soap.mtf
solve {0}/problem.json --time-limit 5
explain {0}/model.mtf
explain {0}/tiling.mtf
simulate {0}/model.mtf --target h100 --trace {0}/trace.json
simulate {0}/soap.mtf --target p100_cluster --layout found --trace {0}/trace.json
diff {0}/tiling.mtf --layout found --layout main --target h100
verify {0}/rules.mtf --backend numpy --layout found
verify {0}/tiling.mtf --backend numpy --layout found
verify {0}/soap.mtf --backend numpy
"""

EXAMPLES = 1
"""Each example takes about five seconds."""


@holds_for(programs(Options(jumps=False)), EXAMPLES)
def test_commands_end_well(generated: Generated) -> None:
    """`verify` draws inputs that are not exact, so their sums are rounded."""
    with TemporaryDirectory() as folder:
        (Path(folder) / "model.mtf").write_text(generated.source, "utf-8")
        for command in COMMANDS.format(folder).splitlines():
            output = StringIO()
            with redirect_stdout(output), redirect_stderr(output):
                status = main(command.split())
            assert status == 0, f"{command}: {output.getvalue()}"


test_commands_end_well_on_windows = holds_for(
    programs(Options(jumps=False, spatial=True, statements=5)), EXAMPLES
)(test_commands_end_well.check)
