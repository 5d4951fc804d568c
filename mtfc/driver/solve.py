"""The cheapest choice of strategies within memory, for `mtfc solve`."""

from __future__ import annotations

from time import monotonic

from mtfc.driver.data.files import read_bytes
from mtfc.driver.errors import FailedRequest
from mtfc.driver.loading.sources import known_as
from mtfc.driver.searching.compilation_time import timing_compilation

STARTED = 0.3
"""Approximate seconds that Python and the command took to start."""


def solve_file(file: str, seconds: float) -> dict[str, object]:
    """Return the JSON record of the solution of an instance of the contest's format.

    seconds: the time for everything, with the start of the process. Raises `UsageError` if the file cannot be read, and
    `FailedRequest` for a malformed file and for an instance without a solution in that time.
    """
    deadline = monotonic() + seconds - STARTED
    content = read_bytes(file)
    from mtfc.compiler.search.solver.assignment_problem import Infeasible, NotFound
    from mtfc.compiler.search.solver.solve import solve
    from mtfc.compiler.search.solver.solver_search import compile_loops
    from mtfc.driver.loading.contest_format import MalformedInstance, read

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
