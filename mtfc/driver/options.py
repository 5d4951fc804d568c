"""Options of the driver's functions as Python values, with the defaults of the command."""

from collections.abc import Sequence
from pathlib import Path

import attrs

from mtfc.driver.data.array_files import CHECKPOINTS
from mtfc.driver.data.files import RemoteFolder, is_remote
from mtfc.driver.errors import UsageError
from mtfc.driver.loading.choice import Choice
from mtfc.driver.running.generation import Generation
from mtfc.driver.training.hosts import Hosts


@attrs.frozen
class FileOptions:
    """The file of a model, and the parts of it that are chosen."""

    file: str
    choice: Choice = attrs.field(factory=Choice)


@attrs.frozen
class ArrayOptions(FileOptions):
    """The arrays that a model computes on. `data` and `params` are paths of files of arrays, the parameters' initial values.

    params_partial: draw the parameters that `params` lacks. seed: the seed of drawn arrays.
    """

    data: str | None = None
    params: str | None = None
    params_partial: bool = False
    seed: int = 0


@attrs.frozen
class CompileOptions(FileOptions):
    """The options of a compilation. passes: a pipeline as text, in place of the passes that the kind needs.

    print_function, print_diff: print only this function after passes, and only the lines that changed. locations: IR text has
    every span.
    """

    emit: str = "spmd"
    train: bool = False
    passes: str | None = None
    stop_after: str | None = None
    print_ir_after: str | None = None
    print_function: str | None = None
    print_diff: bool = False
    locations: bool = False


@attrs.frozen
class RunOptions(ArrayOptions):
    """The options of an execution or a training run. `eval` and `save` are paths of files of arrays.

    backend: None runs on JAX, as a training run does, or on NumPy where JAX is not installed.
    generation: the prompts that a model continues, in place of `data`.
    debug_nans: find the equation that makes the first number that is not finite.
    averages: take the averages of parameters from `params`.
    without_collectives: send nothing, to measure the time of communication; all numbers are wrong then.
    """

    backend: str | None = None
    train: bool = False
    steps: int | None = None
    eval: str | None = None
    save: str | None = None
    generation: Generation | None = None
    debug_nans: bool = False
    averages: bool = False
    without_collectives: bool = False


@attrs.frozen
class Metric:
    """A mean of an evaluation that says how good parameters are. is_best_high: None leaves it to the training's loss."""

    name: str
    is_best_high: bool | None = None


@attrs.frozen
class TrainOptions(ArrayOptions):
    """The options of a training run. None leaves a choice to the data or to the length of the run.

    tokenizer: the file of a tokenizer, for text in `data` and `eval`. folder: of checkpoints and `metrics.jsonl`; without it
    nothing is kept. save_every: steps. save_minutes: minutes. keep: the number of newest checkpoints that stay. fresh: start over
    although there are checkpoints. show_every: steps between lines of text. metrics: the function that takes the figures of each
    step. target: the machine whose predicted time of a step is shown. skipped: ranges of steps that read their batch and change
    nothing. bad_steps: the most steps in a row that may overflow with a dynamic loss scale. grace: seconds from SIGTERM to the
    end that a cluster makes. warm_start: the run whose arrays are taken as far as they fit. keep_best: the mean whose best
    checkpoint is kept, too. stop_early: end after so many evaluations in a row without a better mean.
    """

    steps: int | None = None
    epochs: int | None = None
    eval: str | None = None
    tokenizer: str | None = None
    eval_every: int | None = None
    eval_batches: int | None = None
    folder: str | None = None
    save_every: int | None = None
    save_minutes: float | None = None
    keep: int = 3
    fresh: bool = False
    show_every: int | None = None
    log: str | None = None
    tensorboard: str | None = None
    metrics: str | None = None
    profile: str | None = None
    target: str | None = None
    debug_nans: bool = False
    skipped: tuple[range, ...] = ()
    bad_steps: int = 50
    grace: float = 30.0
    warm_start: str | None = None
    keep_best: Metric | None = None
    stop_early: int | None = None
    whole_documents: bool = False
    hosts: Hosts = attrs.field(factory=Hosts)

    def check(self) -> None:
        """Raise `UsageError` for options that contradict each other."""
        self.hosts.check()
        if self.folder is not None and is_remote(self.folder):
            RemoteFolder.open(self.folder)  # says now which package is missing
        local = {"--log": self.log, "--tensorboard": self.tensorboard, "--profile": self.profile}
        for option, path in local.items():
            if path is not None and is_remote(path):
                raise UsageError(
                    f"{option} {path}: these files grow, and remote ones cannot; name a place on this machine"
                    " (a remote --dir keeps the figures of each step, too)"
                )
        if self.steps is not None and self.epochs is not None:
            raise UsageError("--steps and --epochs both say how long to train: give one of them")
        if self.epochs is not None and self.data is None:
            raise UsageError("--epochs counts passes over the data: give --data, or --steps")
        if self.save_every is not None and self.save_minutes is not None:
            raise UsageError("--save-every and --save-minutes both say when to save: give one of them")
        if self.warm_start is not None and self.params is not None:
            raise UsageError("--warm-start and --params both say where to start: give one of them")
        for option, path in (("--warm-start", self.warm_start), ("--params", self.params)):
            if self.fresh and self.folder and path and _is_in(path, self.folder):
                raise UsageError(
                    f"--fresh moves the results in --dir aside, and {option} {path} names them: give another --dir"
                )
        evaluated, kept = "--eval, the data to evaluate on", "--dir, the folder for checkpoints"
        both = self.folder if self.eval is not None else None
        for option, value, needed, what in (
            (
                "--tokenizer",
                self.tokenizer,
                self.data or self.eval,
                "--data or --eval, whose text becomes tokens",
            ),
            ("--eval-every", self.eval_every, self.eval, evaluated),
            ("--eval-batches", self.eval_batches, self.eval, evaluated),
            ("--keep-best", self.keep_best, both, f"{evaluated}, and {kept}"),
            ("--stop-early", self.stop_early, self.eval, evaluated),
            ("--save-every", self.save_every, self.folder, kept),
            ("--save-minutes", self.save_minutes, self.folder, kept),
        ):
            if value is not None and needed is None:
                raise UsageError(f"{option} goes with {what}")


@attrs.frozen(kw_only=True)
class EvalOptions(FileOptions):
    """The options of an evaluation. data: as `mtfc train` takes it. batches: the most batches of data, or None for all.

    tokenizer: the file of a tokenizer, for text in `data`. whole_documents: as in training.
    """

    data: str
    params: str
    params_partial: bool = False
    averages: bool = False
    batches: int | None = None
    seed: int = 0
    tokenizer: str | None = None
    whole_documents: bool = False
    hosts: Hosts = attrs.field(factory=Hosts)


@attrs.frozen
class VerifyOptions(ArrayOptions):
    """The options of a verification. backend: None runs both backends.

    exact: run the exact check, too. budget: seconds for all checks; None gives each check its own time. step: compare the
    training step with its declaration, and nothing else. all_sizes: run the exact check for every size, and nothing else.
    """

    backend: str | None = None
    dtype: str | None = None
    exact: bool = True
    budget: float | None = None
    step: bool = False
    all_sizes: bool = False


@attrs.frozen(kw_only=True)
class ExchangeOptions(FileOptions):
    """The options of an export or import of weights.

    source: a file or folder of arrays. map: the path of a map of weights. averages: take the averages of parameters.
    """

    source: str
    output: str
    map: str | None = None
    averages: bool = False


@attrs.frozen
class ChainOptions:
    """The options of a search for placements; None for its default.

    starts: names of strategies to start from. proposals: the most of each chain. dimensions: kinds of parallelism, as in
    `S,O,A,P`. one_dimension: True to split each operator in at most one dimension. simulation: `delta` or `full`.
    """

    beta: float | None = None
    seed: int | None = None
    starts: Sequence[str] | None = None
    proposals: int | None = None
    dimensions: Sequence[str] | None = None
    one_dimension: bool = False
    simulation: str | None = None

    @property
    def given(self) -> list[str]:
        """The names of the options that were given."""
        return [
            name.replace("_", "-") for name, each in attrs.asdict(self).items() if each not in (None, False)
        ]


@attrs.frozen
class SearchOptions(FileOptions):
    """The options of a search. None leaves a choice to the file or to the machine.

    objective: None for the first that the space has. budget: seconds. axes: the most axes of a mesh. why_not: rules, or
    configurations of operators, to compare with the result. what_if: True to search again with other resources. The memory of
    the choice is that of a device, in place of the machine's.
    """

    target: str | None = None
    devices: int | None = None
    axes: int | None = None
    axes_names: Sequence[str] | None = None
    space: str = "plan"
    storage: bool = False
    recompute: bool = False
    objective: str | None = None
    budget: float = 60.0
    exhaustive: bool = False
    why_not: str | None = None
    what_if: bool = False
    chains: ChainOptions = attrs.field(factory=ChainOptions)


def _is_in(path: str, folder: str) -> bool:
    """Return True if a path names a folder, or results in it that `--fresh` moves aside."""
    if is_remote(path) or is_remote(folder):
        return f"{path.rstrip('/')}/".startswith(f"{folder.rstrip('/')}/")
    place, run = Path(path).resolve(), Path(folder).resolve()
    return place == run or place.is_relative_to(run / CHECKPOINTS)
