"""The Overview dashboard, for whoever is on call: is it well, who notices, and is it full."""

from builders import (
    Json,
    annotation,
    dashboard,
    heatmap,
    lines,
    quantile,
    query,
    rate,
    red_below,
    red_from,
    row,
    stat,
    timeline,
    variable,
)

EMBEDDING_ROUTES = ("/embed", "/similarity", "/v1/embeddings")
ERROR_BUDGET = 0.001  # the objective is 99.9 % without a fault
LATENCY_OBJECTIVE_SECONDS = 0.5
BY_LANE = "{{lane}} of {{instance}}"

INSTANCE = 'instance=~"$instance"'
ROUTE = f'{INSTANCE},route=~"$route"'
REQUESTS, DURATION = "s2sent_requests_total", "s2sent_request_duration_seconds"
# Every Python process has this metric, hence the job.
RESTARTS = {
    "engine": "s2sent_engine_restarts_total",
    "HTTP process": "s2sent_http_restarts_total",
}
STARTS = f'changes(process_start_time_seconds{{job="s2sent",{INSTANCE}}}[$__rate_interval])'


BUSY = (
    f"{rate('s2sent_batch_duration_seconds_sum', INSTANCE, 'instance')} / "
    f"sum by (instance) (s2sent_engine_concurrent_runs{{{INSTANCE}}})"
)
# Title, metric, unit, legend and description of what waits and what is being handled.
LOAD_GAUGES = (
    (
        *("Texts waiting", "queue_texts", "short", BY_LANE),
        "Texts that wait for a batch, by lane.",
    ),
    (
        *("Tokens waiting", "queue_tokens", "short", BY_LANE),
        "Tokens that wait for a batch; a lane with max_queue_tokens refuses requests.",
    ),
    (
        *("Age of the oldest", "queue_oldest_seconds", "s", BY_LANE),
        "How long the oldest waiting request of each lane has waited.",
    ),
    (
        *("Requests in flight", "requests_in_flight", "short", "{{instance}}"),
        "Requests being handled; those above max_concurrent_requests are refused.",
    ),
)


def overview() -> Json:
    """The whole dashboard."""
    return dashboard(
        "overview",
        "On call: the objectives, then rate, errors, duration and saturation.",
        [objectives(), requests(), latency(), saturation()],
        [
            variable("instance", "s2sent_engine_ready"),
            variable("route", f"{DURATION}_count", EMBEDDING_ROUTES),
        ],
        [annotation("Starts", f"{STARTS} > 0", "{{instance}} started")],
    )


def objectives() -> Json:
    """The service level objectives; whatever instance or route is chosen."""
    firing = 'ALERTS{alertname=~"S2Sent.+",alertstate="firing"}'
    return row(
        "Objectives (all instances, the routes that embed)",
        stat(
            "Alerts firing",
            "none",
            "How many alerts of the service fire now.",
            query(f"count({firing}) or vector(0)"),
            steps=red_from(1),
        ),
        stat(
            "Instances ready",
            "none",
            "How many instances answer /ready with 200.",
            query("sum(s2sent_engine_ready)"),
            steps=red_below(1),
        ),
        stat(
            "Without fault, 1 h",
            "percentunit",
            "Share of the last hour's requests answered without 5xx or 424; at least 99.9 %.",
            query("1 - job:s2sent_request_faults:ratio_rate1h", "{{job}}"),
            steps=red_below(1 - ERROR_BUDGET),
        ),
        stat(
            "Within 0.5 s, 5 min",
            "percentunit",
            "Share of the last five minutes' requests answered within 0.5 s; at least 99 %.",
            query("job:s2sent_requests_within_objective:ratio_rate5m", "{{job}}"),
            steps=red_below(0.99),
        ),
        lines(
            "Error budget burn",
            "suffix: x",
            "How many times as fast as the objective allows the error budget is spent; an alert "
            "fires at 14.4 over 1 h and at 6 over 6 h.",
            *(
                query(f"job:s2sent_request_faults:ratio_rate{window} / {ERROR_BUDGET}", window)
                for window in ("5m", "1h", "6h")
            ),
            steps=red_from(6),
        ),
    )


def requests() -> Json:
    """Rate and errors."""
    all_requests, faults = rate(REQUESTS, ROUTE, "route"), f'{ROUTE},status=~"5..|424"'
    return row(
        "Requests",
        lines(
            "Requests by route",
            "reqps",
            "Requests answered per second, by route.",
            query(all_requests, "{{route}}"),
            width=6,
        ),
        lines(
            "Requests by status",
            "reqps",
            "Requests answered per second, by status; 499 is a client that left.",
            query(f"{rate(REQUESTS, ROUTE, 'status')} > 0", "{{status}}"),
            width=6,
        ),
        lines(
            "Faults by route",
            "percentunit",
            "Share of requests answered with 5xx or 424; at most 0.1 %.",
            query(f"{rate(REQUESTS, faults, 'route')} / {all_requests}", "{{route}}"),
            steps=red_from(ERROR_BUDGET),
            width=6,
        ),
        lines(
            "Unsuccessful by reason",
            "reqps",
            "Why requests got no embedding: refused unprocessed, failed, out of time, or left by "
            "their client.",
            *(
                query(
                    rate(f"s2sent_requests_{what}_total", INSTANCE, by), f"{legend}: {{{{{by}}}}}"
                )
                for what, by, legend in (
                    ("rejected", "reason", "refused"),
                    ("failed", "reason", "failed"),
                    ("timed_out", "stage", "out of time"),
                    ("cancelled", "stage", "client left"),
                )
            ),
            width=6,
        ),
    )


def latency() -> Json:
    """Duration."""
    within = rate(f"{DURATION}_bucket", f'{ROUTE},le="{LATENCY_OBJECTIVE_SECONDS}"', "route")
    return row(
        "Latency",
        *(
            lines(
                f"Latency p{percent}",
                "s",
                f"{percent} % of requests are answered within this time, by route.",
                query(quantile(percent / 100, DURATION, ROUTE, "route"), "{{route}}"),
                steps=red_from(LATENCY_OBJECTIVE_SECONDS),
            )
            for percent in (50, 90, 99)
        ),
        lines(
            "Share within 0.5 s",
            "percentunit",
            "Share of requests answered within the latency objective, by route; at least 99 %.",
            query(f"{within} / {rate(f'{DURATION}_count', ROUTE, 'route')}", "{{route}}"),
            steps=red_below(0.99),
            width=12,
        ),
        heatmap(
            "Latency distribution",
            "s",
            "How many requests took how long, over the chosen routes.",
            DURATION,
            ROUTE,
            width=12,
        ),
    )


def saturation() -> Json:
    """How full it is, and what it does when it is."""
    return row(
        "Saturation",
        *(
            lines(
                title, unit, description, query(f"s2sent_{metric}{{{INSTANCE}}}", legend), width=6
            )
            for title, metric, unit, legend, description in LOAD_GAUGES
        ),
        lines(
            "Encoder busy",
            "percentunit",
            "Batches that run, of those that may run side by side; near 100 % requests queue.",
            query(BUSY, "{{instance}}"),
            steps=red_from(0.9),
            width=6,
        ),
        lines(
            "Refused by reason",
            "reqps",
            "Requests refused unprocessed: queue or concurrency full (429), draining or not ready "
            "(503).",
            query(rate("s2sent_requests_rejected_total", INSTANCE, "reason"), "{{reason}}"),
            width=6,
        ),
        timeline(
            "Engine ready",
            "Whether each instance is ready for requests.",
            query(f"s2sent_engine_ready{{{INSTANCE}}}", "{{instance}}"),
            width=6,
        ),
        lines(
            "Restarts",
            "short",
            "Inference threads and HTTP processes replaced, and instances started anew.",
            *(
                query(
                    f"increase({metric}{{{INSTANCE}}}[$__rate_interval])",
                    f"{what} of {{{{instance}}}}",
                )
                for what, metric in RESTARTS.items()
            ),
            query(STARTS, "process {{instance}}"),
            width=6,
        ),
    )
