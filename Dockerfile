# The image has the static binary and the iptables programs. It runs by another user than
# root, who has capabilities by the program's file, as far as the container may have
# them. A node needs: --network host --cap-drop ALL --cap-add NET_ADMIN
# --cap-add NET_BIND_SERVICE --cap-add NET_RAW --cap-add DAC_READ_SEARCH, the last two for
# legacy iptables, with the node's /run/xtables.lock mounted. --redirect=none needs none.
# Where no process may gain privileges (no-new-privileges, allowPrivilegeEscalation: false)
# a file gives no capabilities: let it be root then, with the same capabilities.
FROM golang:1.26-bookworm AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
ARG VERSION=
RUN CGO_ENABLED=0 go build -trimpath -ldflags "-s -w -X main.version=${VERSION}" -o /kube-splice ./cmd/kube-splice

FROM debian:bookworm-slim
COPY --from=build /kube-splice /usr/local/bin/kube-splice
# Permitted and not in effect (=p): the program starts with fewer, too. The command of
# kube-proxy's DaemonSet finds us, nothing is left that gives more rights (setuid), and
# legacy iptables has a lock where the node's is not mounted.
RUN apt-get update \
 && apt-get install -y --no-install-recommends iptables libcap2-bin \
 && setcap cap_net_admin,cap_net_bind_service,cap_net_raw,cap_dac_read_search=p /usr/local/bin/kube-splice \
 && apt-get purge -y --auto-remove libcap2-bin \
 && rm -rf /var/lib/apt/lists/* \
 && ln -s kube-splice /usr/local/bin/kube-proxy \
 && find / -xdev -type f -perm /6000 -exec chmod a-s {} + \
 && touch /run/xtables.lock
USER 65532:65532
ENTRYPOINT ["/usr/local/bin/kube-splice"]
