"""`mithridate serve`: predictions with certificates over HTTP."""

import argparse
import gc
import signal
import sys
from pathlib import Path
from typing import Any

from mithridate import _validate
from mithridate.cli import _shared
from mithridate.core.mechanism import Threat
from mithridate.errors import ConfigError
from mithridate.serving.claims import DEFAULT_CLAIMS
from mithridate.serving.limits import RequestLimits, check_host, read_token
from mithridate.serving.service import Claiming, Service

_EXAMPLES = """examples:
  mithridate serve runs/flowers
  mithridate serve runs/flowers --host 0.0.0.0 --token-file token --workers 2
  curl -s localhost:8000/predict -H 'Content-Type: application/json' -d '{"inputs": [{"petal": 4.2, "soil": "clay"}]}'

POST /predict takes {"inputs": [...]}: rows (objects by column, or lists in the declared order), texts, pictures (PNG or
JPEG in base64), or numbers in lists. GET /healthz, /metrics (Prometheus) and /openapi.json say the rest. SIGTERM and
Ctrl-C stop it once what was asked is answered.
"""


def add_serve(command: _shared.NewCommand) -> None:
    """Register `mithridate serve`."""
    parser = command(
        help="answer questions over HTTP, with a certificate for each prediction",
        description="Keep a finished run loaded, predict what is asked over HTTP, and certify every prediction.",
        epilog=_EXAMPLES,
    )
    parser.add_argument("run_dir", metavar="RUN_DIR", type=Path, help="directory of the run")
    group = parser.add_argument_group("who is answered")
    group.add_argument("--host", default="127.0.0.1", metavar="H", help="address to listen at (127.0.0.1)")
    group.add_argument("--port", type=int, default=8000, metavar="P", help="port; 0: any that is free (8000)")
    group.add_argument(
        "--token-file", type=Path, metavar="F", help="who brings the token in this file; needed for other machines"
    )
    group = parser.add_argument_group("claim")
    group.add_argument(
        "--threat",
        choices=[threat.value for threat in Threat],
        help="what an attacker may have done, r times (as predict)",
    )
    group.add_argument(
        "--failure-prob",
        type=float,
        default=1e-3,
        metavar="P",
        help="of random methods: probability with which any claim of the budget may fail, over training (0.001)",
    )
    group.add_argument(
        "--claims",
        type=int,
        metavar="N",
        help="of random methods: budget of claims, each of which fails with P / N at most; it outlives restarts "
        f"({DEFAULT_CLAIMS:,})",
    )
    group = parser.add_argument_group("how it runs")
    group.add_argument("--workers", type=int, default=1, metavar="N", help="processes that answer (1)")
    group.add_argument("--device", default="auto", metavar="NAME", help="cpu, cuda, mps or auto")
    group.add_argument(
        "--max-body", type=int, default=RequestLimits.max_body, metavar="BYTES", help="most bytes of a request (16 MiB)"
    )
    group.add_argument(
        "--max-batch", type=int, default=RequestLimits.max_batch, metavar="N", help="most inputs of a request (256)"
    )


def run_serve(arguments: argparse.Namespace) -> int:
    """Serve until a signal asks for the end."""
    limits = RequestLimits(arguments.max_body, arguments.max_batch)
    claiming = Claiming(arguments.threat, arguments.failure_prob, arguments.claims)
    _validate.positive_integer(workers=arguments.workers)
    if not 0 <= arguments.port < 1 << 16:
        raise ConfigError(f"Expected port from 0 to 65535, got {arguments.port}.")
    token = None if arguments.token_file is None else read_token(arguments.token_file)
    check_host(arguments.host, has_token=token is not None)
    running = _running()
    try:
        service: Service | None = Service(arguments.run_dir, claiming, device=arguments.device)
    except ModuleNotFoundError as error:
        raise ConfigError(str(error)) from error
    with running.bound(arguments.host, arguments.port) as sock:
        _say(arguments, service, sock)
        if arguments.workers == 1:
            ended_by = running.run_here(service, limits, token, sock)
        else:
            service = None  # the workers have their own
            gc.collect()
            file = None if arguments.token_file is None else str(arguments.token_file)
            served = running.Served(str(arguments.run_dir), claiming, arguments.device, limits, file)
            ended_by = running.run_workers(served, arguments.workers, sock)
    return 128 + signal.SIGINT if ended_by == signal.SIGINT else 0


def _running() -> Any:
    """What answers, where it is installed."""
    try:
        from mithridate.serving import running
    except ModuleNotFoundError as error:
        if error.name not in ("fastapi", "starlette", "uvicorn", "h11"):
            raise
        raise ConfigError(f"Serving needs {error.name}; install it with: pip install 'mithridate[serve]'") from error
    return running


def _say(arguments: argparse.Namespace, service: Service, sock: Any) -> None:
    """Where it listens and what it claims; at once, for whoever waits for it."""
    host, port = sock.getsockname()[:2]
    url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    if arguments.json:
        budget = None if service.budget is None else {"budget": service.budget.budget, "left": service.budget.left}
        told = {"url": url, "run_dir": str(arguments.run_dir), "method": service.method, "workers": arguments.workers}
        _shared.print_json({**told, "claims": budget, "questions": service.about_questions})
    else:
        console = _shared.console()
        console.print(f"Serving {arguments.run_dir} ({service.method}) at {url}; Ctrl-C stops it.", soft_wrap=True)
        console.print(service.about_questions, soft_wrap=True)
        if service.budget is not None:
            console.print(f"Claims left: {service.budget.left:,} of {service.budget.budget:,}.")
    sys.stdout.flush()
