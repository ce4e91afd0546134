package datagram

// What the fuzz targets read and write.
type Ancillary = ancillary

var (
	ParseControl  = parseControl
	AppendLocal   = appendLocal
	AppendTOS     = appendTOS
	AppendSegment = appendSegment
	ParseAnswer   = parseAnswer
)

// Local returns where a datagram came to.
func (a ancillary) Local() [16]byte { return a.local }

// TOS returns its traffic class.
func (a ancillary) TOS() uint8 { return a.tos }
