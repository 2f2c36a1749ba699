package usage

import (
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"
)

// Error is a mistake of the caller's.
type Error struct{ Err error }

// Error implements error.
func (e Error) Error() string { return e.Err.Error() }

// Unwrap returns what is wrong.
func (e Error) Unwrap() error { return e.Err }

// Errorf makes an Error.
func Errorf(format string, a ...any) error { return Error{fmt.Errorf(format, a...)} }

// Arguments wants from least to most arguments; any number from least on, if most is negative.
func Arguments(least, most int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		switch n := len(args); {
		case n < least:
			return Errorf("%s%s: %s", about(cmd), lacking(n, least, most), shape(cmd))
		case most == 0 && n > 0:
			return Errorf("%s%s is one argument too many: it takes none (%s --help lists its flags)", about(cmd), Quote(args[0]), cmd.CommandPath())
		case most >= 0 && n > most:
			return Errorf("%s%s is one argument too many: %s", about(cmd), Quote(args[most]), shape(cmd))
		}
		return nil
	}
}

// about begins a sentence on a command; that it is of this program is said already.
func about(cmd *cobra.Command) string {
	if !cmd.HasParent() {
		return ""
	}
	return strings.TrimPrefix(cmd.CommandPath(), cmd.Root().Name()+" ") + ": "
}

// lacking says how many arguments there are, and how many there must be.
func lacking(n, least, most int) string {
	given, wanted := "no argument was given", number(least)
	if n > 0 {
		given = number(n) + " was given"
		if n > 1 {
			given = number(n) + " were given"
		}
	}
	if most != least {
		wanted = "at least " + wanted
	}
	return given + ", and it takes " + wanted
}

func number(n int) string {
	names := []string{"no arguments", "one argument", "two arguments", "three arguments"}
	if n < len(names) {
		return names[n]
	}
	return fmt.Sprintf("%d arguments", n)
}

// shape is how a command is called, with an example if it has one.
func shape(cmd *cobra.Command) string {
	line := cmd.Use
	if cmd.HasParent() {
		line = cmd.Parent().CommandPath() + " " + line
	}
	if example, _, _ := strings.Cut(strings.TrimSpace(cmd.Example), "\n"); example != "" {
		return line + ", such as " + example
	}
	return line
}

// Strict makes mistakes in the flags and arguments of a command, and of those below it,
// Errors with sentences. It takes a group without a command for a mistake too, and the help
// of a command that does not exist.
func Strict(root *cobra.Command) {
	root.SilenceUsage, root.SilenceErrors = true, true
	root.SetFlagErrorFunc(flagError)
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	for _, c := range root.Commands() {
		switch c.Name() {
		case "help":
			c.Run, c.RunE = nil, help
			c.Use, c.Short, c.Long = "help [COMMAND]", "Show the help of a command", "Show the help of a command, as COMMAND --help does."
		case "completion":
			for _, shell := range c.Commands() {
				shell.Args = Arguments(0, 0)
			}
		}
	}
	strict(root)
}

func strict(cmd *cobra.Command) {
	check := cmd.Args
	if !cmd.Runnable() {
		check = oneOf
		cmd.RunE = func(*cobra.Command, []string) error { return nil }
	}
	if check == nil {
		check = cobra.ArbitraryArgs
	}
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if err := check(cmd, args); err != nil {
			return asError(err)
		}
		return checkFlags(cmd)
	}
	for _, c := range cmd.Commands() {
		strict(c)
	}
}

func asError(err error) error {
	if errors.As(err, new(Error)) {
		return err
	}
	return Error{err}
}

// oneOf refuses to run a group, and tells which commands it has.
func oneOf(cmd *cobra.Command, args []string) error {
	var names []string
	for _, c := range cmd.Commands() {
		if c.IsAvailableCommand() {
			names = append(names, c.Name())
		}
	}
	if len(args) == 0 {
		return Errorf("%ssay which: %s", about(cmd), strings.Join(names, ", "))
	}
	return Errorf("%s%s is none of %s", about(cmd), Quote(args[0]), strings.Join(names, ", "))
}

// Commands refuses arguments of a root command: they would be a command that it does not have.
func Commands(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	return noCommand(cmd, args)
}

func noCommand(cmd *cobra.Command, args []string) error {
	hint := cmd.Root().Name() + " --help lists the commands"
	if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
		hint = "did you mean " + strings.Join(near, " or ") + "?"
	}
	return Errorf("there is no command %s: %s", Quote(args[0]), hint)
}

// help shows the help of the command that the arguments name.
func help(cmd *cobra.Command, args []string) error {
	found, rest, err := cmd.Root().Find(args)
	switch {
	case found == nil || err != nil || found == cmd.Root() && len(args) > 0:
		return noCommand(cmd.Root(), args)
	case len(rest) > 0 && found.HasSubCommands():
		return oneOf(found, rest)
	}
	found.InitDefaultHelpFlag()
	found.InitDefaultVersionFlag()
	return found.Help()
}

// longest is how much of a word is repeated, in characters: people must find it again.
const longest = 64

// Quote repeats what somebody has typed.
func Quote(word string) string {
	if utf8.RuneCountInString(word) > longest {
		return fmt.Sprintf("%q…", string([]rune(word)[:longest]))
	}
	return fmt.Sprintf("%q", word)
}
