# The gateway only: without engine, embedded databases and build tools.
# By tag; it also takes a digest (python@sha256:...), which whoever pulls the image knows.
ARG PYTHON_IMAGE=python:3.11-slim-bookworm

FROM ${PYTHON_IMAGE} AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
WORKDIR /src
RUN python3 -m venv /opt/build && python3 -m venv /opt/cwm
COPY requirements-build.lock requirements-gateway.lock ./
RUN --mount=type=cache,target=/root/.cache/pip \
    /opt/build/bin/pip install --quiet --require-hashes --no-deps -r requirements-build.lock \
    && /opt/cwm/bin/pip install --quiet --require-hashes --no-deps -r requirements-gateway.lock
COPY pyproject.toml README.md LICENSE ./
COPY migrations migrations
COPY deploy/engine deploy/engine
COPY cwm cwm
COPY cwm_bench cwm_bench
RUN /opt/build/bin/pip wheel --quiet --no-deps --no-build-isolation --no-cache-dir --wheel-dir /dist . \
    && /opt/cwm/bin/pip install --quiet --no-deps --no-index --no-cache-dir /dist/*.whl \
    && /opt/cwm/bin/pip check \
    && /opt/cwm/bin/pip uninstall --quiet --yes pip setuptools

FROM ${PYTHON_IMAGE}
LABEL org.opencontainers.image.title="cwm" \
      org.opencontainers.image.description="Freeze, thaw and clone LLM context windows: one MCP URL in front of vLLM + LMCache." \
      org.opencontainers.image.licenses="Apache-2.0"
# A numeric user, so that Kubernetes can verify that it is not root. The folder is for SQLite; with Postgres it stays empty.
RUN groupadd --gid 10001 cwm \
    && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /var/lib/cwm --shell /usr/sbin/nologin cwm \
    && install --directory --owner=10001 --group=10001 --mode=0700 /var/lib/cwm
COPY --from=build /opt/cwm /opt/cwm
ENV PATH=/opt/cwm/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    HOME=/var/lib/cwm \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    CWM_HOST=0.0.0.0 \
    CWM_PORT=8700 \
    CWM_LOG_FORMAT=json
WORKDIR /var/lib/cwm
USER 10001:10001
EXPOSE 8700
# After SIGTERM running streams may finish for CWM_DRAIN_SECONDS; the container's stop timeout must be longer than that.
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s --retries=3 \
    CMD ["/opt/cwm/bin/python", "-I", "-c", "import http.client as h, os, sys; c = h.HTTPConnection('127.0.0.1', int(os.environ.get('CWM_PORT') or 8700), timeout=4); c.request('GET', '/healthz'); sys.exit(c.getresponse().status != 200)"]
ENTRYPOINT ["cwm"]
CMD ["serve"]
