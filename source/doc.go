// Package source says where Services come from. [Build] turns Kubernetes API
// objects into a [service.Snapshot]; [Manifests] reads those objects from YAML or
// JSON files and follows the files as they change; [Kubernetes] lists and watches
// them in an API server and builds again only what changed.
//
// What it does not do: it opens no socket, writes no packet rule and chooses no
// endpoint. It never passes on events, only whole states; a Port that did not
// change keeps its pointer, so its reader finds changes by comparing pointers.
//
// Objects from files have not passed through an API server, so the package fills
// in what the server would have filled in and checks what the server would have
// checked and the rest of the program relies on: names (they end up in rule
// comments), numbers and addresses. What is wrong is skipped alone and said in a
// [Notice]; nothing else is lost.
//
// It answers to pkg/proxy/config/config.go, pkg/proxy/service.go and
// pkg/proxy/endpointslicecache.go of the historical kube-proxy.
package source
