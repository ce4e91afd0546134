# The image has the static binary and the iptables programs. It runs as root
# because iptables does; --redirect=none needs neither root nor iptables, so run it
# with --user 65534 then. A node needs: --network host --cap-drop ALL
# --cap-add NET_ADMIN --cap-add NET_RAW --cap-add NET_BIND_SERVICE
FROM golang:1.26-bookworm AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
ARG VERSION=
RUN CGO_ENABLED=0 go build -trimpath -ldflags "-s -w -X main.version=${VERSION}" -o /kube-splice ./cmd/kube-splice

FROM debian:bookworm-slim
RUN apt-get update \
 && apt-get install -y --no-install-recommends iptables \
 && rm -rf /var/lib/apt/lists/*
COPY --from=build /kube-splice /usr/local/bin/kube-splice
# The command of kube-proxy's DaemonSet finds us too.
RUN ln -s kube-splice /usr/local/bin/kube-proxy
ENTRYPOINT ["/usr/local/bin/kube-splice"]
