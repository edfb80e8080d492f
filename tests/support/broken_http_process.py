"""`s2sent serve` whose HTTP processes end at once (``-m tests.support.broken_http_process``)."""

import sys
from typing import Any

from s2sent.service import supervisor
from s2sent.service.process import end_process
from s2sent.service.settings_loading import load_settings
from s2sent.service.telemetry.logs import logging_to

if __name__ == "__main__":
    given: Any = dict(zip(sys.argv[1::2], sys.argv[2::2], strict=True))
    settings = load_settings(**{name[2:].replace("-", "_"): given[name] for name in given})
    supervisor.MODULE = "s2sent.service.not_there"
    with logging_to(sys.stdout, settings.log_level):
        code = supervisor.serve_processes(settings, settings.http_processes)
    end_process(code)
