# mithridate in a container; docs/docker.md says how to build and run it.
#   docker build -t mithridate .                               for a CPU
#   docker build -t mithridate --build-arg DEVICE=gpu .        for an NVIDIA GPU
#   docker build -t mithridate --build-arg EXTRAS= .           for auditors: verify, gate and reports, without torch
#   docker build -t mithridate-serve --target serve .          with a health check, for mithridate serve
ARG PYTHON=3.11

FROM python:${PYTHON}-slim AS wheel
WORKDIR /source
COPY pyproject.toml README.md LICENSE ./
COPY src src
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM python:${PYTHON}-slim AS program
# cpu or gpu.
ARG DEVICE=cpu
# Extras of pyproject.toml, with commas between them; none where this is empty.
ARG EXTRAS=serve,data,report
# The address of an index with builds of torch for this device alone. Without it torch comes from where pip looks for
# everything else, in a build that also has what GPUs need: it runs on a CPU, but takes gigabytes.
ARG TORCH_INDEX=
RUN case "$DEVICE" in cpu|gpu) ;; *) echo "Expected DEVICE=cpu or DEVICE=gpu, got '$DEVICE'." >&2; exit 1 ;; esac
# What trains compiles kernels where it runs: Triton for a GPU, C for a CPU.
RUN if [ -n "$EXTRAS" ]; then \
      apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*; \
    fi
COPY constraints.txt /tmp/constraints.txt
COPY --from=wheel /wheels /tmp/wheels
# Torch by itself first, where it has an index of its own; all that it needs comes with the rest.
RUN set -e; \
    if [ -n "$TORCH_INDEX" ]; then \
      PIP_INDEX_URL="$TORCH_INDEX" pip install --no-cache-dir --no-deps -c /tmp/constraints.txt torch; \
    fi; \
    pip install --no-cache-dir -c /tmp/constraints.txt "$(ls /tmp/wheels/*.whl)${EXTRAS:+[$EXTRAS]}"; \
    if [ "$DEVICE" = gpu ]; then \
      python -c "import sys, torch; sys.exit(None if torch.version.cuda else 'This torch knows no GPU.')"; \
    fi; \
    mithridate --version
RUN useradd --create-home --uid 1000 mithridate && install -d -o mithridate -g mithridate /work
# Whoever runs it, be it as another user, has a name and a place for caches.
ENV USER=mithridate MITHRIDATE_CACHE=/tmp/mithridate TRITON_CACHE_DIR=/tmp/triton
ENV NVIDIA_DRIVER_CAPABILITIES=compute,utility
USER mithridate
WORKDIR /work
VOLUME /work
ENTRYPOINT ["mithridate"]
CMD ["--help"]

# Other commands have no health to ask for.
FROM program AS serve
EXPOSE 8000
HEALTHCHECK --interval=30s --timeout=5s --start-period=60s \
  CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/healthz', timeout=4)"]

FROM program
