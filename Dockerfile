# softleak on CPU torch:
#   docker build -t softleak . && docker run --rm -v "$PWD:/audit" softleak audit
FROM python:3.11-slim
COPY . /src
RUN pip install --no-cache-dir --extra-index-url https://download.pytorch.org/whl/cpu \
        --constraint /src/constraints.txt "/src[images,metrics,hf,text]" \
    && rm -rf /src \
    && useradd --create-home auditor
USER auditor
WORKDIR /audit
ENTRYPOINT ["softleak"]
CMD ["--help"]
