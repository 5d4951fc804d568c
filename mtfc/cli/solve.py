"""`mtfc solve`: a choice of strategies at the least cost, for an instance of the contest's format."""

from __future__ import annotations

import argparse
import json
from time import monotonic
from typing import TYPE_CHECKING

from mtfc.cli.options import seconds
from mtfc.cli.progress import clear, reporter
from mtfc.driver.data.files import STANDARD, check_apart, check_writable, read_bytes, write_text
from mtfc.driver.errors import ERRORS, OK, say
from mtfc.driver.searching.compilation_time import compiling
from mtfc.driver.sources import Sources, known_as

if TYPE_CHECKING:
    from mtfc.compiler.search.solver.solve import Solution

EXAMPLES = """\
examples:
  mtfc solve instance.json
  mtfc solve instance.json.gz --time-limit 240 -o solution.json
"""

STARTED = 0.3
"""Seconds that Python and this command took to start, about."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "file",
        metavar="FILE",
        help="an instance, .json or .json.gz as google/iopddl has them; - is standard input",
    )
    parser.add_argument(
        "--time-limit",
        type=seconds,
        default=60.0,
        metavar="S",
        help="seconds for everything, reading included (default: 60)",
    )
    parser.add_argument("--format", choices=("json",), default="json", help="JSON is all that there is")
    parser.add_argument(
        "-o", "--output", default=STANDARD, metavar="OUT", help="write to a file, not to standard output"
    )


def run(options: argparse.Namespace, sources: Sources) -> int:
    deadline = monotonic() + options.time_limit - STARTED
    check_writable(options.output)
    check_apart({"-o": options.output}, {"FILE": options.file})
    content = read_bytes(options.file)
    from mtfc.compiler.search.solver.assignment_problem import Infeasible, NotFound
    from mtfc.compiler.search.solver.contest_format import MalformedInstance, read
    from mtfc.compiler.search.solver.solve import solve
    from mtfc.compiler.search.solver.solver_search import compile_loops

    deadline += compiling(compile_loops, "--time-limit")[1]
    started = monotonic()
    try:
        solution = solve(read(content), deadline, reporter(",", deadline))
    except MalformedInstance as error:
        return _failed(f"{known_as(options.file)}: {error}")
    except Infeasible as error:
        return _failed(f"{known_as(options.file)} has no solution: {error}")
    except NotFound as error:
        return _failed(
            f"{known_as(options.file)}, in {options.time_limit:g} s: {error}; --time-limit gives more"
        )
    finally:
        clear()
    write_text(options.output, f"{json.dumps(_record(solution, monotonic() - started))}\n")
    return OK


def _record(solution: Solution, seconds: float) -> dict[str, object]:
    return {
        "cost": solution.cost,
        "lower_bound": solution.lower_bound,
        "choices": list(solution.choices),
        "seconds": round(seconds, 3),
    }


def _failed(message: str) -> int:
    say(message)
    return ERRORS
