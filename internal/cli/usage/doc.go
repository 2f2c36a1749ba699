// Package usage says in sentences what is wrong with a command line: what was given, what
// is expected, and an example. It is the one place that knows the words of cobra, pflag and
// strconv, for every program of Fairlead's that has flags; those words reach nobody.
//
// Strict prepares a tree of commands. Every mistake that its commands then find in flags
// and arguments is an Error, which a program turns into its exit code for wrong usage.
// The package prints nothing, and knows no command.
package usage
