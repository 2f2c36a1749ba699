// Package config reads the one YAML file that each daemon has. A file names its
// apiVersion and kind, is decoded strictly (an unknown or doubled field is an
// error), gets its defaults, and is validated whole: every mistake is reported at
// once, with the path of its field. docs/config.md lists every field.
//
// The package holds values and reads files. It opens no connection.
package config
