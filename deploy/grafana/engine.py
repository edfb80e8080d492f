"""The Engine dashboard, for whoever tunes it: where time goes, how full batches are, the cost."""

from builders import (
    Json,
    dashboard,
    heatmap,
    lines,
    mean,
    quantile,
    query,
    rate,
    red_from,
    row,
    stat,
    table,
    variable,
)

INSTANCE = 'instance=~"$instance"'
PROCESS = f'job="s2sent",{INSTANCE}'  # every Python process has these metrics, hence the job
REQUESTS = "Requests per second"
STAGES = ("tokenize", "queue", "inference", "serialize")


def engine() -> Json:
    """The whole dashboard."""
    return dashboard(
        "engine",
        "Performance: stages, batches, throughput, process and GPU.",
        [
            stages(),
            lanes(),
            batches(),
            throughput(),
            unsuccessful(),
            process(),
            http_processes(),
            gpu(),
        ],
        [variable("instance", "s2sent_engine_ready")],
        [],
    )


def stages() -> Json:
    """Where a request spends its time."""
    metrics = {stage: f"s2sent_{stage}_duration_seconds" for stage in STAGES}
    return row(
        "Where the time goes",
        lines(
            "Stages of a request, mean",
            "s",
            "Mean time of a request in each stage, stacked up to what the engine takes.",
            *(query(mean(metric, INSTANCE), stage) for stage, metric in metrics.items()),
            stack=True,
            width=12,
        ),
        lines(
            "Stages of a request, p99",
            "s",
            "99 % of requests spend at most this time in a stage.",
            *(query(quantile(0.99, metric, INSTANCE), stage) for stage, metric in metrics.items()),
            width=12,
        ),
    )


def lanes() -> Json:
    """What bulk costs interactive requests, and what it gets."""
    waits, tokens = "s2sent_queue_duration_seconds", "s2sent_tokens_total"
    return row(
        "Lanes",
        lines(
            "Wait by lane, mean",
            "s",
            "Mean time the texts of a request waited, by lane.",
            query(mean(waits, INSTANCE, "lane"), "{{lane}}"),
        ),
        lines(
            "Wait by lane, p99",
            "s",
            "99 % of requests waited at most this time, by lane.",
            query(quantile(0.99, waits, INSTANCE, "lane"), "{{lane}}"),
        ),
        lines(
            "Tokens by lane",
            "suffix: tokens/s",
            "Tokens embedded per second; bulk has at least bulk_share of them while it waits.",
            query(rate(tokens, INSTANCE, "lane"), "{{lane}}"),
            stack=True,
        ),
    )


def batches() -> Json:
    """What the engine runs."""
    duration, padding = "s2sent_batch_duration_seconds", "s2sent_batch_padding_ratio"
    spread = (
        ("Texts per batch", "short", "had how many texts", "s2sent_batch_texts"),
        (
            "Tokens per batch",
            "short",
            "had how many tokens, without padding",
            "s2sent_batch_tokens",
        ),
        ("Batch duration distribution", "s", "ran how long", duration),
    )
    return row(
        "Batches",
        *(
            heatmap(title, unit, f"How many batches {what}.", metric, INSTANCE)
            for title, unit, what, metric in spread
        ),
        lines(
            "Padding share",
            "percentunit",
            "Share of a batch's tokens that is padding. A packed artifact pads in attention only.",
            query(mean(padding, INSTANCE), "mean"),
            query(quantile(0.9, padding, INSTANCE), "p90"),
        ),
        lines(
            "Batch duration",
            "s",
            "Time a batch runs in the encoder.",
            query(mean(duration, INSTANCE), "mean"),
            query(quantile(0.99, duration, INSTANCE), "p99"),
        ),
        *_by_depth(),
        lines(
            "Batches by instance",
            "ops",
            "Batches run per second.",
            query(rate(f"{duration}_count", INSTANCE, "instance"), "{{instance}}"),
        ),
    )


def _by_depth() -> list[Json]:
    """What the batches of each depth are, in texts and in time."""
    panels = (
        ("Texts", "suffix: texts/s", "Texts run", "texts"),
        ("Time in the encoder", "percentunit", "Seconds that batches ran", "duration_seconds"),
    )
    return [
        lines(
            f"{what} by depth",
            unit,
            f"{description} per second, by the last block that was run.",
            query(rate(f"s2sent_batch_{metric}_sum", INSTANCE, "depth"), "{{depth}}"),
            stack=True,
        )
        for what, unit, description, metric in panels
    ]


def throughput() -> Json:
    """What comes out."""
    texts, tokens = "s2sent_texts_total", "s2sent_tokens_total"
    return row(
        "Throughput",
        *(
            lines(
                f"{what} by instance",
                f"suffix: {what.lower()}/s",
                f"{what} embedded per second{without}.",
                query(rate(metric, INSTANCE, "instance"), "{{instance}}"),
                width=6,
            )
            for what, metric, without in (
                ("Texts", texts, ""),
                ("Tokens", tokens, ", padding left out"),
            )
        ),
        lines(
            "Tokens per text",
            "short",
            "Mean tokens of a text, special tokens included.",
            query(f"{rate(tokens, INSTANCE)} / {rate(texts, INSTANCE)}", "mean"),
            width=6,
        ),
        lines(
            "Truncated texts",
            "percentunit",
            "Share of texts cut to the model's maximum length.",
            query(
                f"{rate('s2sent_truncated_texts_total', INSTANCE)} / {rate(texts, INSTANCE)}",
                "truncated",
            ),
            width=6,
        ),
    )


def unsuccessful() -> Json:
    """What was begun and not finished."""
    in_stage = ", by the stage they were in."
    panels = (
        ("Failed", "failed", "reason", "Accepted requests that failed, per second."),
        ("Out of time", "timed_out", "stage", f"{REQUESTS} that met their deadline{in_stage}"),
        ("Client left", "cancelled", "stage", f"{REQUESTS} whose client went away{in_stage}"),
    )
    return row(
        "Requests without an embedding",
        *(
            lines(
                f"{title} by {by}",
                "reqps",
                description,
                query(rate(f"s2sent_requests_{what}_total", INSTANCE, by), f"{{{{{by}}}}}"),
            )
            for title, what, by, description in panels
        ),
    )


def process() -> Json:
    """What it runs on and what runs."""
    return row(
        "Process",
        lines(
            "CPU and threads",
            "none",
            "Cores in use, beside the threads the encoder may use.",
            query(rate("process_cpu_seconds_total", PROCESS, "instance"), "cores, {{instance}}"),
            query(f"s2sent_engine_threads{{{INSTANCE}}}", "threads, {{instance}}"),
        ),
        lines(
            "Resident memory",
            "bytes",
            "Memory of the process that is in RAM.",
            query(f"process_resident_memory_bytes{{{PROCESS}}}", "{{instance}}"),
        ),
        lines(
            "File descriptors",
            "percentunit",
            "Share of the permitted file descriptors that is open; each connection takes one.",
            query(f"process_open_fds{{{PROCESS}}} / process_max_fds{{{PROCESS}}}", "{{instance}}"),
            steps=red_from(0.8),
        ),
        stat(
            "Running for",
            "s",
            "Time since the process started.",
            query(f"time() - process_start_time_seconds{{{PROCESS}}}", "{{instance}}"),
        ),
        stat(
            "Model load",
            "s",
            "Time it took to open, load and warm up the model.",
            query(f"s2sent_model_load_seconds{{{INSTANCE}}}", "{{instance}}"),
        ),
        table(
            "Model",
            "What each instance serves; embeddings of two fingerprints must not be compared.",
            query(f"s2sent_model_info{{{INSTANCE}}}"),
        ),
        table("Build", "Versions each instance runs.", query(f"s2sent_build_info{{{INSTANCE}}}")),
    )


def http_processes() -> Json:
    """How the work is spread over processes, where there are several."""
    cpu, requests = "s2sent_process_cpu_seconds_total", "s2sent_process_requests_total"
    each = "{{process}}, {{instance}}"
    return row(
        "HTTP processes",
        lines(
            "Share of its core by process",
            "percentunit",
            "Processor time of each process; an HTTP process uses one core at most.",
            query(rate(cpu, INSTANCE, "instance, process"), each),
            width=12,
        ),
        lines(
            "Requests by process",
            "reqps",
            "Requests that each process answers; connections are spread by chance.",
            query(rate(requests, INSTANCE, "instance, process"), each),
            width=12,
        ),
    )


def gpu() -> Json:
    """NVIDIA's own exporter knows the GPU; the service does not measure it."""
    panels = (
        ("GPU busy", "percent", "Share of the time in which a kernel runs.", "GPU_UTIL"),
        ("GPU memory", "mbytes", "Memory of the GPU in use.", "FB_USED"),
        ("GPU power", "watt", "Power the GPU draws.", "POWER_USAGE"),
        ("GPU temperature", "celsius", "Temperature of the GPU.", "GPU_TEMP"),
    )
    return row(
        "GPU (needs the DCGM exporter)",
        *(
            lines(title, unit, text, query(f"DCGM_FI_DEV_{field}", "{{Hostname}} {{gpu}}"), width=6)
            for title, unit, text, field in panels
        ),
        collapsed=True,
    )
