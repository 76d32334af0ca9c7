# sortk in a container, from this checkout:
#   docker build --tag sortk .                                        with CUDA on x86-64; run it with --gpus all
#   docker build --tag sortk --build-arg TORCH_INDEX_URL=URL .        URL: PyTorch's package index for CPU, or for another CUDA
#   docker run --rm --volume "$PWD:/data" --workdir /data sortk diarize meeting.wav
FROM python:3.12-slim AS build
WORKDIR /source
COPY . .
RUN pip install --no-cache-dir build && python -m build --wheel --outdir /wheels

FROM python:3.12-slim
ARG TORCH_INDEX_URL=""
COPY --from=build /wheels /wheels
# Without the argument, pip's own index is used, whose torch brings CUDA; one for CPU only is 4 GB smaller.
RUN if [ -n "$TORCH_INDEX_URL" ]; then \
      pip install --no-cache-dir --index-url "$TORCH_INDEX_URL" 'torch>=2.6,<2.12' 'torchaudio>=2.6,<2.12'; \
    fi \
 && pip install --no-cache-dir /wheels/*.whl && rm -r /wheels
ENTRYPOINT ["sortk"]
CMD ["--help"]
