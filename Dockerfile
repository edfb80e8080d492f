# The service in two images: `cpu`, the default, and `gpu`. Inside are a virtual environment and the
# embedded model; no torch, no compiler, no cache.
#
#   docker build --tag s2sent:cpu .                  docker run --publish 127.0.0.1:8080:8080 s2sent:cpu
#   docker build --tag s2sent:gpu --target gpu .     docker run --gpus all ... s2sent:gpu
#
# docs/deployment.md says how to run them. podman builds them too, with --format docker: its own
# format has no HEALTHCHECK.

ARG BASE=python:3.11-slim-bookworm


FROM ${BASE} AS builder
ENV PIP_NO_CACHE_DIR=1 \
    PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PIP_ROOT_USER_ACTION=ignore
# Left out of the images: what tokenizers needs only to download from a model hub. The service opens
# tokenizer.json from the artifact and never asks a hub.
ENV HUB_CLIENT="huggingface-hub hf-xet filelock fsspec tqdm PyYAML"
WORKDIR /src
RUN apt-get update && apt-get install --yes --no-install-recommends tini=0.19.0* \
    && rm -rf /var/lib/apt/lists/*
# The environment has no pip of its own: the builder's installs into it and stays behind.
RUN pip install setuptools==84.2.1 && python -m venv --without-pip /opt/venv


FROM builder AS wheel
COPY pyproject.toml README.md LICENSE NOTICE ./
COPY s2sent s2sent
COPY model model
COPY service service
COPY training training
RUN pip wheel --no-deps --no-build-isolation --wheel-dir /wheels .


# Python runs the code in .pth files at every start; none of the packages needs one.
FROM builder AS venv-gpu
COPY deploy/requirements-gpu.txt ./
RUN pip --python /opt/venv/bin/python install --require-hashes --requirement requirements-gpu.txt \
    && pip --python /opt/venv/bin/python uninstall --yes ${HUB_CLIENT}
COPY --from=wheel /wheels /wheels
RUN pip --python /opt/venv/bin/python install --no-deps /wheels/*.whl \
    && test -z "$(find /opt/venv -name '*.pth')"


# Packages bring tests that nothing here runs; nor does the conversion to int8 need the reference
# implementation of onnx.
FROM builder AS venv-cpu
COPY deploy/requirements-cpu.txt ./
RUN pip --python /opt/venv/bin/python install --require-hashes --requirement requirements-cpu.txt \
    && pip --python /opt/venv/bin/python uninstall --yes ${HUB_CLIENT} \
    && rm -r /opt/venv/lib/python3.*/site-packages/onnx/backend/test \
        /opt/venv/lib/python3.*/site-packages/onnx/reference \
    && find /opt/venv -type d -name tests -prune -exec rm -r {} +
COPY --from=wheel /wheels /wheels
RUN pip --python /opt/venv/bin/python install --no-deps /wheels/*.whl \
    && test -z "$(find /opt/venv -name '*.pth')"


FROM ${BASE} AS runtime
ARG BASE
ARG VERSION=0.1.0
ARG REVISION=
ARG CREATED=
LABEL org.opencontainers.image.title="s2sent" \
      org.opencontainers.image.description="S2Sent sentence embeddings and similarity over HTTP." \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.created="${CREATED}" \
      org.opencontainers.image.base.name="${BASE}"
# The embedded model lies where another is mounted: no setting has to change with it. ONNX Runtime
# would keep a device id in the home folder and report its use to Microsoft.
ENV PATH=/opt/venv/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    ORT_DISABLE_TELEMETRY=1 \
    S2SENT_HOST=0.0.0.0 \
    S2SENT_ARTIFACT=/artifact
COPY --from=builder /usr/bin/tini /usr/bin/tini
COPY artifacts/default /artifact
# A number, so that Kubernetes can see it is not root. Nothing looks the account up, so none is made,
# and any other number works as well.
USER 10001:10001
WORKDIR /
EXPOSE 8080
# A check takes 0.3 s of one core, most of it Python's start.
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s --retries=3 CMD ["s2sent", "healthcheck"]
# The service handles SIGTERM once its event loop runs. Until then Python has no handler, and a signal
# without one is lost on PID 1: tini makes a stop during the start end the container at once.
ENTRYPOINT ["tini", "--", "s2sent"]
CMD ["serve"]


FROM runtime AS gpu
# What the NVIDIA container runtime reads; CUDA and cuDNN themselves come as wheels. The artifact is
# converted at the start, and kept below /tmp, which has to be writable.
ENV NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility \
    S2SENT_DEVICE=cuda \
    S2SENT_INT8_CACHE=/tmp/s2sent
COPY --from=venv-gpu /opt/venv /opt/venv


FROM runtime AS cpu
COPY --from=venv-cpu /opt/venv /opt/venv
