"""`mtfc solve`: solve an instance of the IOPDDL contest.

examples:
  mtfc solve instance.json
  mtfc solve instance.json.gz --time-limit 240 -o solution.json
"""

import json
from time import monotonic

from mtfc.cli.options import Options
from mtfc.cli.progress import figures_line
from mtfc.driver.data.files import STANDARD, read_bytes, write_text
from mtfc.driver.errors import FailedRequest
from mtfc.driver.loading.sources import known_as

OPTIONS = """
  FILE                   an instance in the format of google/iopddl, .json or .json.gz; - is standard input
  --time-limit S         time limit in seconds, with reading (default: 60)
  --format json          the only format
  -o, --output OUT       write to a file instead of standard output
"""
STARTED = 0.3
"""Approximate seconds that Python and the command took to start."""

DEFAULTS = {"time_limit": 60.0, "format": "json", "output": STANDARD}


def run(options: Options) -> None:
    """Solve an assignment problem in the format of a contest, and write the solution."""
    options.check_outputs("-o")
    with figures_line(",", options.time_limit):
        record = _solution(options.file, options.time_limit)
    write_text(options.output, f"{json.dumps(record)}\n")


def _solution(file: str, seconds: float) -> dict[str, object]:
    """Return the JSON record of the solution of an instance of the contest's format.

    seconds: the time for everything, with the start of the process. Raises `UsageError` if the file cannot be read, and
    `FailedRequest` for a malformed file and for an instance without a solution in that time.
    """
    deadline = monotonic() + seconds - STARTED
    from mtfc.compiler.search.solver.assignment_problem import Infeasible, NotFound
    from mtfc.compiler.search.solver.solve import solve
    from mtfc.compiler.search.solver.solver_search import compile_loops
    from mtfc.driver.loading.other_files import MalformedInstance, read
    from mtfc.driver.searching.compilation_time import timing_compilation

    content = read_bytes(file)
    started = monotonic()
    try:
        instance = read(content)
        compiled_in = timing_compilation(compile_loops, "--time-limit")[1]
        solution = solve(instance, deadline + compiled_in)
    except MalformedInstance as error:
        raise FailedRequest(f"{known_as(file)}: {error}") from None
    except Infeasible as error:
        raise FailedRequest(f"{known_as(file)} has no solution: {error}") from None
    except NotFound as error:
        raise FailedRequest(f"{known_as(file)}, in {seconds:g} s: {error}; --time-limit gives more") from None
    return {
        "cost": solution.cost,
        "lower_bound": solution.lower_bound,
        "choices": list(solution.choices),
        "seconds": round(monotonic() - started - compiled_in, 3),
    }
