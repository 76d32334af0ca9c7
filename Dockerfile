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
# Without the argument, torch comes from pip's own index and brings CUDA. pip prefers a build such as 2.11.0+cpu to 2.11.0,
# so with the argument torch comes from the index that it names; for CPU only, the image is 4 GB smaller.
RUN pip install --no-cache-dir ${TORCH_INDEX_URL:+--extra-index-url "$TORCH_INDEX_URL"} /wheels/*.whl && rm -r /wheels
ENTRYPOINT ["sortk"]
CMD ["--help"]
