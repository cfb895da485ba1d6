package config

import (
	"encoding/json"
	"maps"
	"reflect"
	"strings"

	"github.com/spf13/pflag"
)

// Flag is a flag as documents show it.
type Flag struct {
	Name, Type, Default, Stability, Means string

	Field string // of the file of --config that the flag stands for; empty: none
}

// FlagGroup is the flags below one heading.
type FlagGroup struct {
	Title string
	Flags []Flag
}

// Flags returns all flags in the order of --help. A default that depends on the machine is left out.
func Flags() (out []FlagGroup) {
	s, groups := declare()
	for i, g := range groups {
		of := FlagGroup{Title: g.title}
		g.flagSet().VisitAll(func(f *pflag.Flag) {
			_, usage := pflag.UnquoteUsage(f)
			value := f.DefValue
			if f.Name == "loops" || value == "[]" {
				value = ""
			}
			o := s.options[f.Name]
			stability := o.stability()
			if i == len(groups)-1 {
				stability = "stable" // kube-proxy's, and ignored
			}
			of.Flags = append(of.Flags, Flag{f.Name, f.Value.Type(), value, stability, usage, o.field})
		})
		out = append(out, of)
	}
	return out
}

// Field is a field of the file of --config as documents show it.
type Field struct {
	Name, Type, Default string

	Flags []string // that stand for the field
	Means string   // as of the first flag
}

// fieldMeans says what fields are that no flag stands for.
var fieldMeans = map[string]string{
	"kind":                                "the kind of the file",
	"apiVersion":                          "the version of the format",
	"clientConnection.acceptContentTypes": "ignored: Sluice accepts what it requests",
	"nftables.masqueradeBit":              "`--iptables-masquerade-bit`, for mode nftables",
	"nftables.masqueradeAll":              "`--masquerade-all`, for mode nftables",
	"nftables.syncPeriod":                 "`--iptables-sync-period`, for mode nftables",
	"nftables.minSyncPeriod":              "`--iptables-min-sync-period`, for mode nftables",
}

// Fields returns all fields of the file, in the order of their types.
func Fields() (out []Field) {
	flags, means := make(map[string][]string), maps.Clone(fieldMeans)
	for _, g := range Flags() {
		for _, f := range g.Flags {
			flags[f.Field] = append(flags[f.Field], f.Name)
			if means[f.Field] == "" {
				means[f.Field] = f.Means
			}
		}
	}
	var d Document
	d.setDefaults()
	eachField(reflect.ValueOf(d), "", func(name, kind, value string) {
		out = append(out, Field{name, kind, value, flags[name], means[name]})
	})
	return out
}

// eachField calls do with every field of a struct that is written as one value.
func eachField(v reflect.Value, prefix string, do func(name, kind, value string)) {
	for i := range v.NumField() {
		name, _, _ := strings.Cut(v.Type().Field(i).Tag.Get("json"), ",")
		field := v.Field(i)
		of := field.Type()
		if of.Kind() == reflect.Pointer {
			of = of.Elem()
		}
		written := reflect.PointerTo(of).Implements(reflect.TypeFor[json.Marshaler]())
		switch kind := of.Kind(); {
		case v.Type().Field(i).Anonymous && name == "":
			eachField(field, prefix, do)
		case written && strings.Contains(of.Name(), "Duration"):
			do(prefix+name, "duration", shown(field))
		case kind == reflect.Struct && !written:
			eachField(field, prefix+name+".", do)
		default:
			word, ok := fieldTypes[kind]
			if !ok {
				word = strings.TrimRight(kind.String(), "0123456789")
			}
			do(prefix+name, word, shown(field))
		}
	}
}

// fieldTypes are the words of YAML for kinds of Go.
var fieldTypes = map[reflect.Kind]string{reflect.Slice: "list", reflect.Struct: "quantity", reflect.Uint32: "int"}

// shown is a default as the file may have it; empty: there is none.
func shown(v reflect.Value) string {
	if v.IsZero() {
		return ""
	}
	text, err := json.Marshal(v.Interface())
	if err != nil {
		return ""
	}
	return strings.Trim(string(text), `"`)
}
