# sortk in a container, from this checkout:
#   docker build --tag sortk .                                        CPU
#   docker build --tag sortk --build-arg DEVICE=cuda .                CUDA; run it with --gpus all
#   docker run --rm --volume "$PWD:/data" --workdir /data sortk diarize meeting.wav
FROM python:3.12-slim AS build
WORKDIR /source
COPY . .
RUN pip install --no-cache-dir build && python -m build --wheel --outdir /wheels

FROM python:3.12-slim
ARG DEVICE=cpu
COPY --from=build /wheels /wheels
# PyPI's torch and torchaudio bring CUDA; those of the CPU index do not, and are 4 GB smaller.
RUN if [ "$DEVICE" = cpu ]; then \
      pip install --no-cache-dir --index-url https://download.pytorch.org/whl/cpu 'torch>=2.6,<2.12' 'torchaudio>=2.6,<2.12'; \
    fi \
 && pip install --no-cache-dir /wheels/*.whl && rm -r /wheels
ENTRYPOINT ["sortk"]
CMD ["--help"]
