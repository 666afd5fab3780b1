# The gateway: HTTP in, tokens to the scheduler. No torch. Build from the repository's root:
#   docker build -f docker/gateway.Dockerfile -t drumline-gateway .
# Another package index: --build-arg PIP_INDEX_URL=...
FROM python:3.11-slim AS build
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
WORKDIR /src
COPY . .
RUN python -m venv /opt/drumline && /opt/drumline/bin/pip install --no-cache-dir ".[gateway]"

FROM python:3.11-slim
LABEL org.opencontainers.image.title="drumline-gateway" org.opencontainers.image.licenses="Apache-2.0"
RUN useradd --uid 10001 --create-home drumline
COPY --from=build /opt/drumline /opt/drumline
ENV PATH=/opt/drumline/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 \
    DRUMLINE_GATEWAY_HOST=0.0.0.0 DRUMLINE_GATEWAY_PORT=8000
USER 10001
EXPOSE 8000
HEALTHCHECK --interval=5s --timeout=3s --start-period=20s --retries=3 CMD ["drumline", "probe", "http://127.0.0.1:8000/live"]
STOPSIGNAL SIGTERM
ENTRYPOINT ["drumline", "gateway"]
