// Package kube is the datastore on the Kubernetes API. The API server admits what is
// written and keeps it; this package is a client only, made of client-go's REST client,
// because its informers keep whole objects and back off for half a minute.
//
// Core kinds travel as protobuf, custom resources as JSON. Writes are what the contract
// of package datastore says: Update is a PUT that carries the resourceVersion,
// UpdateStatus a JSON patch of the status alone (the verb is "patch" on the subresource:
// some kinds would take labels from a PUT to it). Our own kinds are validated here before
// they are sent, so that a refusal reads as it does elsewhere, and Subnets are held
// against the other Subnets and the nodes, which no schema can do.
//
// What it promises beyond the contract:
//   - Pages reads by a streaming list where the server has that, else in pages of 500 at
//     one resourceVersion. Managed fields are dropped before anything keeps an object;
//     with Config.Lean also what Fairlead never reads of Pods and Nodes.
//   - A watch goes on by itself from its last position when the server ends it in order,
//     which it does every few minutes. Bookmarks move the position.
//   - A frozen server and a connection whose other end is gone are found by pings of
//     HTTP/2 within Config.PingInterval and PingTimeout: every call and watch ends.
//   - A server whose data was replaced by older data ends watches with IsResourceExpired.
//   - ClusterNetworkPolicies need not be installed: their list is empty, and their watch
//     waits until the definition appears.
//   - Files of credentials are read again: a token's once a minute and after a refusal, the
//     others after a refusal. The error says what was refused and which files to look at.
//
// It differs from the other implementations in two ways. Finalizers are kept and honoured,
// as the API does. And an API server that answers while its etcd has lost its quorum is
// not noticed by a watch that is idle, for that would take polling; calls do notice.
//
// It polls nothing, writes nothing by itself, and puts no secret into an error or a log.
package kube
