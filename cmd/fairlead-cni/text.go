package main

// decimal formats n.
func decimal(n int) string {
	if n < 0 {
		return "-" + decimal(-n)
	}
	var buf [20]byte
	i := len(buf)
	for {
		i--
		buf[i] = byte('0' + n%10)
		if n /= 10; n == 0 {
			return string(buf[i:])
		}
	}
}

// parseDecimal reads up to nine digits and returns -1 for anything else.
func parseDecimal(s string) int {
	if s == "" || len(s) > 9 {
		return -1
	}
	n := 0
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			return -1
		}
		n = n*10 + int(s[i]-'0')
	}
	return n
}

func join(list []string, separator string) string {
	out := ""
	for i, s := range list {
		if i > 0 {
			out += separator
		}
		out += s
	}
	return out
}

// index returns where sub begins in b, or -1.
func index(b []byte, sub string) int {
	for i := 0; i+len(sub) <= len(b); i++ {
		if string(b[i:i+len(sub)]) == sub {
			return i
		}
	}
	return -1
}

// cutLine splits head after its first CRLF.
func cutLine(head string) (line, rest string) {
	for i := 0; i+1 < len(head); i++ {
		if head[i] == '\r' && head[i+1] == '\n' {
			return head[:i], head[i+2:]
		}
	}
	return head, ""
}

// headerValue returns what follows name, given in lower case, and its colon.
func headerValue(line, name string) (string, bool) {
	if len(line) <= len(name) || line[len(name)] != ':' {
		return "", false
	}
	for i := range len(name) {
		c := line[i]
		if 'A' <= c && c <= 'Z' {
			c += 'a' - 'A'
		}
		if c != name[i] {
			return "", false
		}
	}
	value := line[len(name)+1:]
	for value != "" && (value[0] == ' ' || value[0] == '\t') {
		value = value[1:]
	}
	for value != "" && (value[len(value)-1] == ' ' || value[len(value)-1] == '\t') {
		value = value[:len(value)-1]
	}
	return value, true
}

// quote returns s as a JSON string, cut to what an error message can bear.
func quote(s string) string {
	const limit = 80
	if len(s) > limit {
		s = s[:limit] + "…"
	}
	return string(appendString(nil, s))
}

// appendString appends s as a JSON string (RFC 8259, section 7). Bytes that are
// not UTF-8 become U+FFFD.
func appendString(dst []byte, s string) []byte {
	const hex = "0123456789abcdef"
	dst = append(dst, '"')
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			dst = append(dst, '\\', byte(r))
		case r < 0x20 || r == 0x7f:
			dst = append(dst, '\\', 'u', '0', '0', hex[r>>4], hex[r&0xf])
		default:
			dst = append(dst, string(r)...)
		}
	}
	return append(dst, '"')
}

// appendBase64 appends the standard encoding with padding (RFC 4648, section 4).
func appendBase64(dst, src []byte) []byte {
	const alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
	for ; len(src) >= 3; src = src[3:] {
		v := uint(src[0])<<16 | uint(src[1])<<8 | uint(src[2])
		dst = append(dst, alphabet[v>>18], alphabet[v>>12&63], alphabet[v>>6&63], alphabet[v&63])
	}
	switch len(src) {
	case 1:
		v := uint(src[0]) << 16
		dst = append(dst, alphabet[v>>18], alphabet[v>>12&63], '=', '=')
	case 2:
		v := uint(src[0])<<16 | uint(src[1])<<8
		dst = append(dst, alphabet[v>>18], alphabet[v>>12&63], alphabet[v>>6&63], '=')
	}
	return dst
}

// versionOf returns the cniVersion of the JSON object in config if it is one that
// we speak, else the newest. It only finds one string; it does not validate.
func versionOf(config []byte) string {
	versions := supported()
	newest := versions[len(versions)-1]
	depth, key := 0, ""
	for i := 0; i < len(config); i++ {
		switch config[i] {
		case '{', '[':
			depth++
		case '}', ']':
			depth--
		case ',':
			key = ""
		case '"':
			start := i + 1
			for i = start; i < len(config) && config[i] != '"'; i++ {
				if config[i] == '\\' {
					i++
				}
			}
			if depth != 1 || i >= len(config) {
				continue
			}
			text := string(config[start:i])
			if key != "cniVersion" {
				key = text
				continue
			}
			for _, v := range versions {
				if v == text {
					return v
				}
			}
			return newest
		}
	}
	return newest
}
