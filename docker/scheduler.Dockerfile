# The scheduler: decides who runs. No torch. Build from the repository's root:
#   docker build -f docker/scheduler.Dockerfile -t drumline-scheduler .
# Another package index: --build-arg PIP_INDEX_URL=...
FROM python:3.11-slim AS build
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
WORKDIR /src
COPY . .
RUN python -m venv /opt/drumline && /opt/drumline/bin/pip install --no-cache-dir .

FROM python:3.11-slim
LABEL org.opencontainers.image.title="drumline-scheduler" org.opencontainers.image.licenses="Apache-2.0"
# A volume mounted here inherits the owner, so that recordings can be written without root.
RUN useradd --uid 10001 --create-home drumline && install -d -o 10001 -m 0700 /recordings
COPY --from=build /opt/drumline /opt/drumline
ENV PATH=/opt/drumline/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 \
    DRUMLINE_SCHEDULER_HOST=0.0.0.0 DRUMLINE_SCHEDULER_PORT=7001 \
    DRUMLINE_SCHEDULER_METRICS_HOST=0.0.0.0 DRUMLINE_SCHEDULER_METRICS_PORT=9001
USER 10001
EXPOSE 7001 9001
HEALTHCHECK --interval=5s --timeout=3s --start-period=20s --retries=3 CMD ["drumline", "probe", "127.0.0.1:7001"]
STOPSIGNAL SIGTERM
ENTRYPOINT ["drumline", "scheduler"]
