package proxy

// OriginalDestination is for tests with sockets that Proxy does not open, such as
// dual-stack ones.
var OriginalDestination = originalDestination
