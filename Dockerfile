# The one Dockerfile. Every engine of `sparkforge.engine` builds it: the BuildKit of a Docker engine from 20.10 on, or
# buildah from 1.28 on, so it uses what both know: no `# syntax=` (that is fetched from a registry), no here-documents,
# no build contexts by name. It is built by `invoke build`, which makes its context and its arguments.
#
# Stages. `lay*` run on the building machine, lay the wheels of the *image's* platform and run nothing of them.
# `image`, `serve` and `cpu` are of the image's platform and hold, slowest to change first: base, runtime, upstreams,
# FlashInfer's modules, kernels, overlay, entrypoint. Nothing there runs a program of the image unless it is the machine's
# own platform.
#
# Every RUN names the digest of what it mounts: buildah 1.28 reuses a RUN although its mounted files changed, and only
# an argument that the command uses tells it. They mount below /run: buildah removes a mount point afterwards, also one
# that was there before.

ARG BASE=scratch
ARG BUILD_BASE=scratch
# Both platforms are always said: after a stage that says its own, buildah 1.28 takes that for the ones behind it.
ARG PLATFORM=linux/amd64
ARG BUILD_PLATFORM=linux/amd64
ARG REGISTRY_IMAGE=scratch
# native: the runtime is installed in the image itself. cross: it is laid by another platform's machine and copied.
ARG LAY=native

# A base from a registry, with the packages that every base has. Built by itself, with a network; the only stage with one.
FROM --platform=${PLATFORM} ${REGISTRY_IMAGE} AS base
ARG PACKAGES=
RUN apt-get update \
 && DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends ${PACKAGES} \
 && rm -rf /var/lib/apt/lists/* /var/cache/apt/*

FROM --platform=${BUILD_PLATFORM} ${BUILD_BASE} AS lay
COPY images/lay /opt/lay
ARG TOOLS
RUN --mount=type=bind,source=tools,target=/run/lay \
    echo "tools ${TOOLS}" && python3 /opt/lay/install.py tools /run/lay \
 && install -d -m 0775 -o 2000 -g 0 /opt/lay/home/vllm /opt/lay/home/vllm/.cache \
    /opt/lay/home/vllm/.cache/sparkforge /opt/lay/home/vllm/.cache/huggingface

FROM lay AS lay-runtime
ARG WHEEL_PLATFORM
ARG TRIPLE
ARG RUNTIME
RUN --mount=type=bind,source=runtime,target=/run/lay \
    echo "runtime ${RUNTIME}" && python3 /opt/lay/install.py runtime \
    --wheels /run/lay/wheels --lock /run/lay/lock.txt --platform ${WHEEL_PLATFORM} --triple ${TRIPLE}

FROM --platform=${PLATFORM} ${BASE} AS runtime-native
ARG WHEEL_PLATFORM
ARG TRIPLE
ARG RUNTIME
RUN --mount=type=bind,source=runtime,target=/run/lay --mount=type=bind,from=lay,source=/opt/lay,target=/run/scripts \
    echo "runtime ${RUNTIME}" && python3 /run/scripts/install.py runtime \
    --wheels /run/lay/wheels --lock /run/lay/lock.txt --platform ${WHEEL_PLATFORM} --triple ${TRIPLE}

FROM --platform=${PLATFORM} ${BASE} AS runtime-cross
COPY --from=lay-runtime /opt/venv /opt/venv
COPY --from=lay-runtime /opt/sparkforge /opt/sparkforge

FROM lay AS lay-upstream
ARG WHEEL_PLATFORM
ARG TRIPLE
ARG UPSTREAM
RUN --mount=type=bind,source=upstream,target=/run/lay \
    echo "upstream ${UPSTREAM}" && python3 /opt/lay/install.py upstream \
    --wheels /run/lay/wheels --lock /run/lay/lock.txt --platform ${WHEEL_PLATFORM} --triple ${TRIPLE}

FROM lay-upstream AS lay-overlay
ARG PYTHON
ARG OVERLAY
RUN --mount=type=bind,source=overlay,target=/run/lay \
    echo "overlay ${OVERLAY}" && mkdir -p /opt/overlay && for one in /run/lay/*/; do \
    [ -f "$one/manifest.json" ] || continue; \
    python3 /run/lay/apply.py --overlay "$one" --site /opt/venv/lib/python${PYTHON}/site-packages --out /opt/overlay \
    || exit 1; done && cp -a /run/lay/links/. /opt/overlay/

FROM runtime-${LAY} AS image
ARG PYTHON
COPY --from=lay --chown=2000:0 /opt/lay/home/ /home/
COPY --from=lay-upstream /opt/venv /opt/venv
# Under a name of their content; the overlay brings a link to it, named by the tree whose FlashInfer looks for them.
COPY aot/ /opt/venv/lib/python${PYTHON}/site-packages/flashinfer/data/aot/
COPY kernels/ /opt/venv/lib/python${PYTHON}/site-packages/
COPY --from=lay-overlay /opt/overlay/ /opt/venv/lib/python${PYTHON}/site-packages/
COPY images/run/ /opt/sparkforge/
COPY manifest.json /opt/sparkforge/manifest.json
# A user without a line in passwd has no name and no home there: HOME, USER and LOGNAME stand for it. Compiled code is kept
# apart by the build's key, so that no image loads what another one compiled; models and the harmony vocabulary are not.
ARG BUILD_KEY
ENV PATH=/opt/venv/bin:/opt/sparkforge/cuda/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    VIRTUAL_ENV=/opt/venv \
    HOME=/home/vllm \
    USER=vllm \
    LOGNAME=vllm \
    LANG=C.UTF-8 \
    PYTHONUNBUFFERED=1 \
    HF_HOME=/home/vllm/.cache/huggingface \
    VLLM_CACHE_ROOT=/home/vllm/.cache/sparkforge/${BUILD_KEY}/vllm \
    FLASHINFER_WORKSPACE_BASE=/home/vllm/.cache/sparkforge/${BUILD_KEY}/flashinfer \
    TRITON_CACHE_DIR=/home/vllm/.cache/sparkforge/${BUILD_KEY}/triton \
    TORCHINDUCTOR_CACHE_DIR=/home/vllm/.cache/sparkforge/${BUILD_KEY}/inductor \
    CUDA_CACHE_PATH=/home/vllm/.cache/sparkforge/${BUILD_KEY}/cuda \
    TIKTOKEN_RS_CACHE_DIR=/home/vllm/.cache/sparkforge/harmony \
    VLLM_USAGE_SOURCE=sparkforge-image
WORKDIR /home/vllm
USER 2000:0
EXPOSE 8000
HEALTHCHECK --interval=30s --timeout=10s --start-period=20m --retries=3 CMD ["/opt/sparkforge/healthcheck"]
ENTRYPOINT ["/opt/sparkforge/entrypoint"]

FROM image AS cpu
ENV VLLM_TARGET_DEVICE=cpu

FROM image AS serve
ARG ARCHS_TORCH
ARG ARCHS_FLASHINFER
# The kernel of the experts is not named here but by the entrypoint, which can tell a user's variable from its own.
ENV CUDA_HOME=/opt/sparkforge/cuda \
    TRITON_PTXAS_PATH=/opt/sparkforge/cuda/bin/ptxas \
    TRITON_PTXAS_BLACKWELL_PATH=/opt/sparkforge/cuda/bin/ptxas \
    TORCH_CUDA_ARCH_LIST="${ARCHS_TORCH}" \
    FLASHINFER_CUDA_ARCH_LIST="${ARCHS_FLASHINFER}" \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility
