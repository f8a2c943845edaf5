# Two images, both without root:
#   docker build --target api -t scrimp-api .
#   docker build --target worker -t scrimp-worker .
#   docker build --target worker -t scrimp-worker-cuda --build-arg WORKER_BASE=nvidia/cuda:12.8.1-base-ubuntu24.04 \
#       --build-arg TORCH_INDEX=https://download.pytorch.org/whl/cu128 .
# The worker's base may be any Debian or Ubuntu image whose packages have Python 3.11 or newer.
ARG API_BASE=python:3.11-slim-bookworm
ARG WORKER_BASE=python:3.11-slim-bookworm

FROM ${API_BASE} AS api
# Nothing is written at run time: the bytecode is compiled below. Without it, each start took twice as long.
ENV PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 PATH=/opt/scrimp/bin:$PATH
# A fixed uid: it owns the secret files and the volume.
RUN groupadd --gid 10001 scrimp && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /var/lib/scrimp scrimp \
    && install -d -m 0700 -o scrimp -g scrimp /var/lib/scrimp /var/lib/scrimp-admin \
    && python3 -m venv /opt/scrimp
WORKDIR /srv/scrimp
COPY pyproject.toml constraints.txt README.md LICENSE setup.py alembic.ini ./
COPY alembic alembic
COPY app app
COPY client client
COPY core core
COPY scrimp scrimp
COPY scrimp_server scrimp_server
COPY worker worker
# Without torch: the API never loads it.
RUN pip install --no-cache-dir -c constraints.txt -e ./client -e '.[production,images,otel,s3,oidc]' \
    && python3 -m compileall -q app core scrimp scrimp_server worker
ENV SCRIMP_HOME=/var/lib/scrimp SCRIMP_HOST=0.0.0.0
USER 10001:10001
VOLUME /var/lib/scrimp
EXPOSE 8100
CMD ["scrimp", "api"]

FROM ${WORKER_BASE} AS worker
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
ENV PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 PATH=/opt/scrimp/bin:$PATH
RUN if ! command -v python3 >/dev/null; then \
        apt-get update && apt-get install -y --no-install-recommends python3 python3-venv && rm -rf /var/lib/apt/lists/*; \
    fi \
    && groupadd --gid 10001 scrimp && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /var/lib/scrimp scrimp \
    && install -d -m 0700 -o scrimp -g scrimp /var/lib/scrimp \
    && python3 -m venv /opt/scrimp
WORKDIR /srv/scrimp
COPY pyproject.toml constraints.txt README.md LICENSE setup.py alembic.ini ./
COPY alembic alembic
COPY app app
COPY client client
COPY core core
COPY scrimp scrimp
COPY scrimp_server scrimp_server
COPY worker worker
RUN pip install --no-cache-dir --extra-index-url "${TORCH_INDEX}" -c constraints.txt -e ./client -e '.[production,worker,hf,otel,s3,ray]' \
    && python3 -m compileall -q app core scrimp scrimp_server worker
# The image has no compiler; without this, noise is made in Python.
RUN pip install --no-cache-dir -c constraints.txt ziglang && python3 core/native/build.py && pip uninstall -qy ziglang
ENV SCRIMP_HOME=/var/lib/scrimp
USER 10001:10001
VOLUME /var/lib/scrimp
CMD ["scrimp", "worker"]
