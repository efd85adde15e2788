"""Records what Python's jinja2 gives, for crates/text/tests/template_table.rs and template_conversations.rs.

    pip install jinja2==3.1.6 markupsafe==3.0.4
    python record.py

writes expressions.json.gz and conversations.json.gz beside itself. The environment is the one that transformers compiles
chat templates in.
"""

import copy
import datetime
import gzip
import itertools
import json
import pathlib
import random
import re

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.sandbox

from programs import PROGRAMS

HERE = pathlib.Path(__file__).parent
NOW = datetime.datetime(2025, 2, 3, 4, 5, 6)


class Generation(jinja2.ext.Extension):
    """`{% generation %}` as transformers' AssistantTracker parses it."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_support"), [], [], body).set_lineno(line)

    @jinja2.pass_eval_context
    def _support(self, context, caller):
        return caller()


def environment():
    env = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols]
    )

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = lambda format: NOW.strftime(format)
    return env


ENV = environment()
CONTEXT = {
    "null": None,
    "word": "aB c",
    "number": 3,
    "objects": [
        {"name": "Bo", "age": 3, "tags": ["x", "y"]},
        {"name": "al", "age": 1, "tags": [], "in": {"deep": [1, 2]}},
        {"name": "Cy", "age": 3},
    ],
    "messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": None}],
    "schema": {"type": "object", "items": {"type": "string"}, "keys": 1, "get": "g", "properties": {"é": {"type": ["a", "null"]}}},
}


def result(source, context):
    """The text, or the name of the error."""
    try:
        text = ENV.from_string(source).render(**copy.deepcopy(context))
    except Exception as error:
        return {"error": type(error).__name__, "message": str(error)}
    if re.search("0x[0-9a-fz]{6}", text, re.IGNORECASE):
        return {"error": "Address", "message": "the text has an address of Python's memory"}
    return {"text": text}


KINDS = [
    "none", "nope", "true", "false", "3", "0", "-7", "2.5", "0.0", "'aB c'", "''", "'12'", "[3, 1, 2]", "[]",
    "{'b': 1, 'a': 'x'}", "{}", "(1, 'a')", "()", "('<b>&'|safe)", "range(3)", "'é<\\'\"'", "namespace(a=1)",
    "[3, 1]|map('string')", "{'k': 2}.items()", "{'k': 2}.keys()", "{'k': 2}.values()", "word.upper", "range",
]
PLAIN = [
    "none", "nope", "true", "3", "-7", "0", "2.5", "'ab'", "''", "[3, 1]", "[]", "{'b': 1}", "{}", "(1, 'a')",
    "('<b>'|safe)", "range(2)",
]

TESTS = [
    "boolean", "callable", "defined", "escaped", "even", "false", "filter", "float", "in [1, 3, 'a', none]",
    "in 'aB cd'", "in {'b': 1}", "integer", "iterable", "lower", "mapping", "none", "number", "odd", "sameas none",
    "sameas true", "sameas 3", "sequence", "string", "test", "true", "undefined", "upper", "divisibleby 3",
    "divisibleby(0)", "eq 3", "equalto 'aB c'", "ne none", "gt 1", "ge 1", "lt 1", "le 'b'", "greaterthan(2)",
    "lessthan([])", "no_such_test", "in nope", "in none", "not none", "not defined",
]

FILTERS = [
    "abs", "attr('upper')", "attr('items')", "attr('b')", "attr('_x')", "batch(2)|list", "batch(2, 'f')|list", "capitalize", "center",
    "center(9)", "count", "d('D')", "default('D')", "default('D', true)", "default(default_value='D', boolean=true)",
    "dictsort", "dictsort(true)", "dictsort(false, 'value')", "dictsort(reverse=true)", "e", "escape",
    "filesizeformat", "filesizeformat(true)", "first", "float", "float(7)", "forceescape", "format(1)", "format(1, 2)",
    "groupby('b')", "groupby(0)", "indent", "indent(2, true)", "indent('> ', first=true)", "int", "int(9)", "int(base=16)", "int(7, 36)", "items|list", "join",
    "join(', ')", "join('-'|safe)", "join(',', attribute='b')", "last", "length", "list", "lower", "map('string')|list",
    "map('upper')|list", "map(attribute='b')|list", "map(attribute='b', default=5)|list", "map('no_such')|list", "max", "min",
    "max(attribute=0)", "reject('string')|list", "reject|list", "rejectattr('b')|list", "replace('a', 'Z')",
    "replace('b', '<', 1)", "reverse|list", "round", "round(1)", "round(-1)", "round(1, 'floor')", "round(0, 'ceil')", "round(method='x')", "safe",
    "select('number')|list", "select|list", "select('gt', 1)|list", "selectattr('b')|list", "selectattr('b', 'eq', 1)|list",
    "selectattr('b', 'defined')|list", "slice(2)|list", "slice(2, 'f')|list", "sort", "sort(reverse=true)", "sort(case_sensitive=true)",
    "sort(attribute='b')", "string", "sum", "sum(start=10)", "sum('b')", "title", "tojson", "tojson(indent=2)",
    "tojson(sort_keys=true)", "tojson(separators=(',', ':'))", "tojson(ensure_ascii=true)", "trim", "trim('a')",
    "trim('<b')", "truncate(4)", "truncate(3, true, '', 0)", "truncate", "unique|list", "unique(true)|list", "upper", "urlencode", "wordcount",
    "xmlattr", "xmlattr(false)", "no_such_filter", "reverse", "list|last", "list|length", "list|first", "list|join('|')", "string|length",
    "tojson|length", "attr(3)",
]

METHODS = [
    "capitalize()", "casefold()", "center(9)", "center(9, '*')", "count('a')", "count('')", "count('a', 1)", "endswith('c')", "endswith(('c', 'x'))",
    "endswith('B', 0, 2)", "expandtabs()", "expandtabs(2)", "find('B')", "find('zz')", "find('', 9)", "find('a', -3)", "format(1, x=2)", "format_map({'x': 1})",
    "index('B')", "index('zz')", "isalnum()", "isalpha()", "isascii()", "isdecimal()", "isdigit()", "isidentifier()",
    "islower()", "isnumeric()", "isprintable()", "isspace()", "istitle()", "isupper()", "join(['x', 'y'])", "join('xy')",
    "join([1])", "join([])", "join({'k': 1})", "ljust(9)", "ljust(9, '.')", "lower()", "lstrip()", "lstrip('a')", "partition(' ')", "partition('')",
    "partition('zz')", "removeprefix('a')", "removesuffix('c')", "replace('a', 'b')", "replace('', '-')", "replace('a', 'b', 1)",
    "replace('a')", "replace('a', 1)", "rfind('c')", "rindex('c')", "rjust(9)", "rjust(9, '0')", "rpartition(' ')", "rpartition('zz')", "rsplit()", "rsplit(' ', 1)", "rsplit('')",
    "rsplit(none, 1)", "rstrip()", "rstrip('c ')", "split()", "split(' ')", "split('')", "split('B', 1)", "split(none, 1)", "split(sep='B')", "split(maxsplit=1)", "split(1)",
    "splitlines()", "splitlines(true)", "startswith('a')", "startswith(('x', 'a'))", "startswith(1)", "startswith('B', 1)", "strip()", "strip('a')", "strip(none)", "strip(1)",
    "swapcase()", "title()", "upper()", "upper(1)", "zfill(8)", "no_such()", "get('b')", "get('zz')", "get('zz', 5)", "get()", "get([])", "items()|list", "keys()|list",
    "values()|list", "copy()", "items(1)", "append(1)", "pop('b')", "update({})", "sort()", "reverse()", "extend([])", "insert(0, 1)", "clear()", "setdefault('a', 1)",
    "index(1)", "index(3, 1)", "count(1)", "is_integer()", "bit_length()", "items", "keys", "append", "b", "a.b", "no_such", "no_such.more", "__class__",
    "_private", "real", "imag", "numerator", "denominator", "start", "stop", "step",
]
METHOD_KINDS = [
    "none", "nope", "true", "3", "2.5", "'aB c'", "' aaBa\\tx\\n '", "''", "'-12'", "'éßǅ1²Ⅷ'", "[3, 1, 2]", "{'b': 1, 'a': 'x'}",
    "(1, 'a')", "('<a>&'|safe)", "range(1, 9, 2)", "namespace(b=1)",
]

OPERATORS = ["+", "-", "*", "/", "//", "%", "**", "~", "==", "!=", "<", ">=", "in", "not in", "and", "or"]

SUBSCRIPTS = [
    "[0]", "[-1]", "[5]", "['b']", "['items']", "['no']", "[none]", "[true]", "[1.0]", "[nope]", "[0, 1]", "[:]", "[1:]", "[:-1]", "[::-1]", "[::2]",
    "[5:1]", "[-2:]", "[:99]", "[2:0:-1]", "[none:none:none]", "[::0]", "['a':]", "[true:]", "[-99:2]", "[1:][0]", ".0", ".b", ".items", ".upper", "()", "(1)", "(x=1)",
]

TEXTS = [
    "'it\\'s'", "'\"'", "'it\\'s \"q\"'", "'a\\nb\\tc\\rd\\\\e'", "'\\x41\\u00e9\\U0001F600\\101\\0'", "'\\d\\q'", "'é\\u2028\\xa0\\x7f\\xad'", "'🙂'", "'\\ue000'",
    "'\\u0378'", "'a' 'b'", "\"x'y\"", "'\\x4'", "'\\u12'", "'\\N{BULLET}'", "'line\nbreak'", "'back\\\nslash'", "'\\a\\b\\f\\v'", "'\\r\\n'",
]
NUMBERS = [
    "1e16", "1e15", "123456789012345678", "1.5e300", "1e-5", "0.0001", "-0.0", "0.1 + 0.2", "1e400", "-1e400", "1e400 - 1e400", "10 ** 20",
    "2 ** 100", "2 ** -1", "0 ** 0", "(-8) ** 0.5", "2 ** 0.5", "0 ** -1", "7 // 2", "-7 // 2", "7 // -2", "-7 % 3", "7 % -3", "7.5 // 2", "-7.5 % 2", "7.5 % -2", "1 / 3", "6 / 2", "1 // 0", "1 % 0", "1 / 0",
    "1.0 // 0", "1.0 % 0", "0x1F", "0b101", "0o17", "1_000", "1_0.5_0", "1e3", "1E+3", "5.", ".5", "00", "012", "1.0", "3.0 * 2", "100000000000000000000", "1 < 2 < 3", "3 > 2 > 2", "1 < 3 > 2",
    "1 == 1.0 == true", "1 in [1] in [[1]]", "not 1 == 2", "not not 3", "-2 ** 2", "2 ** 3 ** 2", "- 3|abs", "-3|abs", "--3", "+true", "-true", "~3", "1 + 2 ~ 3 * 4", "1 ~ 2 + 3", "2 * 3 ~ 4",
    "10 // 3 * 3 + 10 % 3", "1 if 0", "1 if 0 else 2 if 0 else 3", "(1 if 1)", "none and 1", "0 or '' or 'x'", "1 and 2 or 3", "nope or 5", "[] or {}", "true + true", "true * 3", "5 - true", "true / 2", "-true", "not nope", "1 is odd and 2 is even",
    "1 == 1 is true", "'a' is string|upper", "3 is divisibleby 3 and true", "2 is eq 2", "2 is not eq 3", "'x' is in ['x']", "'x' is not in ['x']", "1 is number is true", "1 is sameas 1",
    "[1,2,]", "(1,)", "(1)", "()", "{'a':1,}", "{1: 2, 'x': none, true: false}", "{1: 'a', 1.0: 'b', true: 'c'}", "{[]: 1}", "{(1,): 1}", "{nope: 1}", "[1][0]", "{'a': {'b': [1, {'c': 2}]}}.a.b[1].c",
    "1.5.real", "1.e", "x.y.z", "'a'.b", "'abc'[1]", "'abc'.1", "'abc'[1:2]", "'%s' % 'x'", "'%s %s' % (1, 'b')", "'%d' % 3.7", "'%05d|%-5d|%+d|% d' % (3, 3, 3, 3)", "'%5.2f|%e|%g|%G' % (3.14159, 12345.678, 0.00001, 1e20)",
    "'%x %X %#x %o %c %c' % (255, 255, 255, 8, 65, 'z')", "'%r' % 'q'", "'%(a)s-%(b)05.1f' % {'a': 1, 'b': 2}", "'%%'", "'%%' % ()", "'%s' % ()", "'%s' % (1, 2)", "'%d' % 'x'", "'%s' % none", "'%s' % [1, 2]", "'%z' % 1", "'%' % 1", "'%*d' % (5, 3)", "'%.3s|%10s|%-10s' % ('abcdef', 'r', 'l')",
    "'%s'|format", "'%s-%s'|format('a', 2)", "'%(x)s'|format(x=3)", "'<%s>'|safe % '<'", "('<%s>'|safe) % ('<',)", "('<%d>'|safe) % 3", "'{}'.format(1)", "'{} {}'.format(1)", "'{0} {1} {0}'.format('a', 'b')", "'{a}'.format(a=1)", "'{a.b} {c[0]} {c[k]}'.format(a={'b': 1}, c={'0': 1, 0: 3, 'k': 2})",
    "'{:>5}|{:<5}|{:^5}|{:*^7}'.format('a', 'b', 'c', 'd')", "'{:05d}|{:+}|{:,}|{:_}|{:x}|{:#b}|{:o}'.format(3, 3, 1234567, 1234567, 255, 5, 8)", "'{:.2f}|{:10.3e}|{:%}|{:g}|{:,.2f}'.format(3.14159, 31415.9, 0.25, 1e10, 12345.678)", "'{!r} {!s} {!a}'.format('é', 'é', 'é')", "'{{}} {}'.format(1)", "'{'.format()", "'}'.format()", "'{:{w}}'.format('x', w=5)",
    "'{} {0}'.format(1)", "'{x}'.format()", "'{0.upper}'.format('a')", "'{:d}'.format('x')", "'{:s}'.format(3)", "'{:.3}'.format('abcdef')", "'{:5}|{:5}'.format(1, 'a')", "'{:n}'.format(5)", "'{:c}'.format(65)", "'{}'.format(none)", "'{:5}'.format(none)", "'{:5}'.format([1])", "'{}'.format([1, 'a'])", "'{}'.format(true)", "'{:d}'.format(true)", "'{:e}'.format(0)", "'{:g} {:g} {:G}'.format(0.0001, 0.00001, 1e-10)", "'{:.0f} {:.0f} {:.1f}'.format(0.5, 1.5, 0.25)", "'{:=+6d}'.format(3)", "'{:<<5}'.format('a')", "('<{}>'|safe).format('<b>')", "'{:.2%}'.format(0.12345)", "'{:08.3f}'.format(-3.14159)", "'{:,}'.format(1234.5)",
    "[1, 2] + [3]", "(1,) + (2,)", "[1] + (2,)", "[1, 2] * 2", "'ab' * 3", "3 * 'ab'", "'ab' * -1", "[0] * true", "'a' + 1", "'a' ~ 1 ~ none ~ true ~ 1.0 ~ [] ~ nope", "1 + none", "none + 'a'", "{'a': 1} + {}", "('<'|safe) + '<'", "'<' + ('<'|safe)", "('<'|safe) ~ '<'", "('<'|safe) * 2", "['<'|safe, '<']|join", "('<'|safe).join(['<', '>'|safe])", "','.join(['<'|safe])", "('a<'|safe).upper() + '<'", "('<'|safe)[0] + '<'", "('<a'|safe).split('a')[0] + '<'", "('x<'|safe).replace('x', '<')", "('<'|safe)|upper + '<'", "('<'|safe)|string + '<'", "'<'|e + '<'", "'<'|escape|escape", "('<'|safe)|tojson", "('a'|safe) == 'a'", "{'a': 1}['a'|safe]", "'<\\'\"&>'|e", "none|e", "[1]|e", "('<'|safe).format", "('%s'|safe)|format('<')",
    "1 == true", "1 == 1.0", "0 == false", "'1' == 1", "none == false", "[1] == (1,)", "[1, [2]] == [1, [2.0]]", "{'a': 1} == {'a': 1.0}", "{'a': 1, 'b': 2} == {'b': 2, 'a': 1}", "nope == nope", "nope == none", "range(3) == range(3)", "range(0) == range(2, 2)", "'a' < 'b'", "'a' < 'B'", "[1, 2] < [1, 3]", "[1] < [1, 0]", "(1, 'a') < (1, 'b')", "[1, 'a'] < [1, 2]", "true < 2", "1 < 1.5", "none < 1", "'a' < 1", "{} < {}", "1e400 > 10 ** 30", "9007199254740993 == 9007199254740992.0", "9007199254740993 > 9007199254740992.0", "'' in 'abc'", "'bc' in 'abc'", "1 in 'abc'", "none in [none]", "1.0 in [1]", "'a' in {'a': 1}", "[] in {'a': 1}", "1 in range(5)", "1.0 in range(5)", "7 in range(5)", "'a' in nope", "1 in 5", "'k' in {'k': 1}.keys()", "1 in {'k': 1}.values()", "('k', 1) in {'k': 1}.items()", "'a' in namespace(a=1)", "nope in [nope]", "'a' not in 'b'",
    "range(5)", "range(1, 5)", "range(5, 1, -2)|list", "range(0)|list", "range(1, 2, 0)", "range('a')", "range(1.0)", "range(true)|list", "range()", "range(5)[1:3]", "range(5)[-1]", "range(10)[::-3]|list", "range(3)|length", "range(100001)", "range(5)|reverse|list", "range(3)|last", "range(3).index(1)", "dict(a=1, b='x')", "dict([('a', 1)], b=2)", "dict({'a': 1})", "dict([1])", "dict()", "dict(1)", "namespace(a=1)", "namespace({'a': 1}).a", "namespace().a", "namespace(a=1).items", "lipsum", "cycler(1, 2).next()", "cycler(1, 2).current", "cycler()", "joiner('|')() ~ 'x'", "joiner", "cycler(1)", "dict", "range.x", "loop", "caller", "self", "super()", "varargs", "true()", "'a'()", "nope()", "none()", "word()", "[1]()", "word.upper()()", "range(2, stop=3)",
    "strftime_now('%Y-%m-%d %H:%M:%S %j %a %A %b %B %p %I %y %% %-d')", "raise_exception('no')", "raise_exception()", "raise_exception(1)", "strftime_now()", "strftime_now(1)", "not_a_function(1)",
    "objects|map(attribute='name')|join(',')", "objects|map(attribute='tags.0')|list", "objects|map(attribute='in.deep.1')|list", "objects|map(attribute='in.deep', default='-')|list", "objects|selectattr('in')|map(attribute='name')|list", "objects|selectattr('in', 'defined')|list|length", "objects|selectattr('age', 'gt', 1)|map(attribute='name')|list", "objects|rejectattr('age', 'equalto', 3)|map(attribute='name')|list", "objects|selectattr('name', 'in', ['Bo', 'Cy'])|list|length", "objects|groupby('age')|map(attribute='grouper')|list", "objects|groupby('age')|map(attribute='list')|map('length')|list", "objects|groupby('in.deep', default=0)|list|length", "objects|sort(attribute='name')|map(attribute='name')|list", "objects|sort(attribute='age,name')|map(attribute='name')|list", "objects|sort(attribute='name', case_sensitive=true)|map(attribute='name')|list", "objects|sort", "objects|sum(attribute='age')", "objects|map(attribute='age')|unique|list", "objects|max(attribute='name')|items|list", "objects|min(attribute='age')|tojson", "objects|map('items')|map('list')|map('length')|list", "objects|map('attr', 'items')|list|length", "objects|tojson", "objects", "objects|map(attribute='name')|map('lower')|sort|join", "objects|first|items|first", "objects|batch(2)|map('length')|list", "objects|slice(2)|map('length')|list", "objects|map('tojson')|first", "objects|map(bad=1)|list", "objects|map|list", "objects|select('mapping')|list|length", "objects|select('no_such')|list", "[]|select('no_such')|list", "[]|map('no_such')|list", "objects|selectattr|list", "['a', 'A', 'b']|unique|list", "['a', 'A', 'b']|unique(case_sensitive=true)|list", "['b', 'A', 'a']|sort", "['b', 'A', 'a']|sort(case_sensitive=true)", "[3, 'a']|sort", "[none, 1]|sort", "[1, true, 0.5]|sort", "[[2], [1]]|sort", "['b', 'A']|max", "['b', 'A']|min", "[]|max", "[]|first", "[]|last", "''|first", "{}|first", "{'b': 1, 'a': 2}|first", "{'b': 1, 'a': 2}|last", "{'b': 1}|list", "{'b': 1, 'a': 2}|join('-')", "{'b': 1, 'a': 2}|dictsort|map('first')|list", "'abc'|list", "'abc'|reverse", "'cab'|sort", "'abc'|join('-')", "'abc'|map('upper')|list", "'abc'|batch(2)|list", "'aab'|unique|list", "'abc'|last", "[1, none]|map('abs')|first", "[1, 2, 3]|map('string')|first", "[[1, 2], [3]]|sum(start=[])", "['a', 'b']|sum", "[1.5, 2]|sum", "[0.1]*10|sum", "([0.1]*10)|sum", "[true, true]|sum", "[1, 2, 3, 4, 5]|slice(3)|list", "[1, 2, 3, 4, 5]|batch(2, 0)|list", "[1]|slice(0)|list", "[1]|batch(0)|list", "[]|batch(2)|list",
    "'42.7'|int", "'x'|int", "'x'|int(5)", "'0x1f'|int(0, 16)", "'1f'|int(base=16)", "' 42 '|int", "'1_000'|int", "3.99|int", "-3.99|int", "none|int", "[]|int(7)", "true|int", "1e400|int", "'1e400'|int", "'nan'|float", "'inf'|float", "' 1.5 '|float", "'x'|float", "'1_0.5'|float", "none|float(3)", "'1e3'|float", "'1e3'|int", "true|float", "2.5|round", "3.5|round", "2.675|round(2)", "-2.5|round", "1234|round(-2)", "1250|round(-2)", "42.55|round(1, 'ceil')", "42.55|round(1, 'floor')", "7|round(1, 'floor')", "'a'|round", "1e300|round(5)", "0.1|round(20)", "5|round", "true|round", "none|round",
    "-5|abs", "true|abs", "'a'|abs", "'hello world foo'|title", "\"it's a-b (c) [d] <e>\"|title", "'ÀÉß'|lower", "'ß'|upper", "'ß'|capitalize", "'ǆ'|title", "'ΑΣ'|lower", "'foo bar baz qux'|truncate(9)", "'foo bar baz qux'|truncate(9, true)", "'foo bar baz qux'|truncate(11)", "'foo bar baz qux'|truncate(11, false, '...', 0)", "'foo'|truncate(2)", "'a\nb\n\nc'|indent", "'a\nb\n\nc'|indent(2, blank=true)", "'a\nb'|indent(first=true)", "'a\n'|indent", "''|indent", "'\n'|indent", "'a\r\nb'|indent(1)", "'é/ &=?'|urlencode", "{'a b': 'c&d', 'e': 1}|urlencode", "[('a', 1)]|urlencode", "'one two, three'|wordcount", "'a_b é1 -'|wordcount", "'  x '|trim", "'xxaxx'|trim('x')", "'abcabc'|replace('b', 'X', 1)", "'aaa'|replace('', '-')", "1234|replace(2, 9)", "'a'|replace('a', none)", "none|upper", "none|trim", "[1]|lower", "1500|filesizeformat", "1500|filesizeformat(true)", "1|filesizeformat", "'x'|filesizeformat", "1e30|filesizeformat", "{'class': 'a<b', 'x': none, 'y': 3}|xmlattr", "{'a b': 1}|xmlattr", "{}|xmlattr", "'abc'|center(2)", "'abc'|center(8)|e", "'ab'|center(5)",
    "{'a': none, 'b': true, 'c': 1.0, 'd': 'é', 'e': [], 'f': {}, 'g': (1,)}|tojson", "{'a': [1, {'b': []}], 'c': {}}|tojson(indent=2)", "{'a': [1, 2]}|tojson(indent='\t')", "[1, 2]|tojson(indent=0)", "{'b': 1, 'a': 2}|tojson(sort_keys=true, indent=1)", "{1: 2, none: 3, true: 4, 1.5: 5}|tojson", "{(1,): 2}|tojson", "{1: 2, 'a': 3}|tojson(sort_keys=true)", "[1, 2]|tojson(separators=(',', ':'))", "{'a': [1]}|tojson(2)", "'\\x7f\\x00<>&\\'\\u2028'|tojson", "'é🙂'|tojson(ensure_ascii=true)", "1e400|tojson", "-0.0|tojson", "1e16|tojson", "nope|tojson", "range(3)|tojson", "[nope]|tojson", "objects|map('string')|tojson", "word.upper|tojson", "10 ** 20|tojson", "('<'|safe)|tojson", "{'k': 1}.items()|tojson", "namespace(a=1)|tojson", "true|tojson", "none|tojson", "{'a': 1}|tojson(bad=1)", "[1]|tojson(separators=(', ', ': '), indent=1)",
    "word|length", "number|length", "null|length", "nope|length", "schema.items", "schema.items()|list|length", "schema.keys", "schema['items']", "schema['keys']", "schema.get('get')", "schema.get", "schema.type", "schema['properties'].é.type[1]", "schema.properties['é']['type']|join", "schema|items|list|length", "schema.values()|list|last", "schema|attr('type')", "schema|attr('items')", "messages[0].role", "messages[-1]['content'] is none", "messages[0]['nope'] is defined", "messages[9] is defined", "messages[9].x", "messages[1:]|length", "messages[::-1][0].role", "messages|last|attr('role')", "messages[0].content.x", "messages[0].content.strip().split('x')[-1]", "nope.x", "nope['x']", "nope[0]", "none.x", "none['x']", "none[0]", "nope|list", "nope|join", "nope ~ 'a'", "nope + 1", "nope == ''", "-nope", "nope < 1", "nope is none", "nope is string", "nope is iterable", "nope|upper", "nope|int", "nope|float", "nope|first", "nope|default('x')|upper", "none|default('x')", "none|default('x', true)", "''|default('x', true)", "nope.x|default('y')", "word.nope|default('y')", "word.nope.x|default('y')", "number.x", "1.x", "(1).x", "word[0]", "word['upper']()", "word.upper()", "word['nope']", "word[none]", "word[10]", "number[0]", "number['real']", "true.real", "none.real", "(none).__class__", "word.__len__", "''.__class__.__mro__", "[].append(1)", "[].append", "{}.pop", "{'pop': 1}.pop", "{'pop': 1}['pop']", "{}.update({})", "[1, 2].pop()", "[1].index(1)", "[1].index(2)", "[1, 1].count(1)", "[1].copy()", "(1, 2).count(1)", "{'a': 1}.copy()", "{'a': 1}.get('a')", "{'a': 1}.get('b', 'c')", "{'a': 1}.items()", "{'a': 1}.keys()", "{'a': 1}.values()", "{'a': 1}.items()[0]", "{'a': 1}.items()|first", "{'a': 1}.keys()|list", "{'b': 1, 'a': 2}.keys()|sort", "{'a': 1}.values()|sum", "({'a': 1}.items()|list)[0][1]", "{'a': 1}.fromkeys", "{'a': 1}.__contains__('a')", "{1: 'x'}[1.0]", "{1: 'x'}[true]", "{none: 1}[none]", "{'a': 1}|length", "{'a': 1}.a.b.c", "{'a': 1}|string", "[1, 'a', none, 2.0]|string", "(1, 'a')|string", "('a')|string", "1.0|string", "none|string", "true|string", "nope|string", "[nope]|string", "[nope, none]",
]


def expressions():
    """Expressions; each is printed in a list, so that its type shows."""
    for kind, test in itertools.product(KINDS, TESTS):
        yield f"({kind}) is {test}"
    for kind, filter_ in itertools.product(KINDS, FILTERS):
        yield f"({kind})|{filter_}"
    for kind, method in itertools.product(METHOD_KINDS, METHODS):
        yield f"({kind}).{method}"
    for left, operator, right in itertools.product(PLAIN, OPERATORS, PLAIN):
        yield f"{left} {operator} {right}"
    for kind in KINDS:
        for operator in ["-", "+", "not "]:
            yield f"{operator}({kind})"
        for subscript in SUBSCRIPTS:
            yield f"({kind}){subscript}"
        yield f"1 if ({kind}) else 2"
    yield from TEXTS
    yield from NUMBERS


def write(name, value):
    data = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
    with open(HERE / name, "wb") as raw, gzip.GzipFile(filename="", mode="wb", fileobj=raw, mtime=0, compresslevel=9) as file:
        file.write(data)
    return len(data)


def record_expressions():
    cases = []
    seen = set()
    for expression in expressions():
        if expression in seen:
            continue
        seen.add(expression)
        cases.append({"source": "{{ [" + expression + "] }}", **result("{{ [" + expression + "] }}", CONTEXT)})
    for kind in KINDS + TEXTS + NUMBERS:
        source = "{{ " + kind + " }}"
        cases.append({"source": source, **result(source, CONTEXT)})
    for source in PROGRAMS:
        cases.append({"source": source, **result(source, CONTEXT)})
    size = write("expressions.json.gz", {"context": CONTEXT, "cases": cases})
    errors = sum("error" in case for case in cases)
    print(f"{len(cases)} expressions and programs, {errors} of them errors, {size} bytes")


TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": "The \"city\""},
                "unit": {"type": "string", "enum": ["c", "f"], "default": "c"},
                "days": {"type": ["integer", "null"]},
                "list": {"type": "array", "items": {"type": "string"}},
                "any": {"anyOf": [{"type": "string"}, {"type": "number"}]},
                "deep": {"type": "object", "properties": {"x": {"type": "boolean"}}, "required": ["x"]},
            },
            "required": ["city"],
        },
        "return": {"type": "string"},
    },
}
BARE_TOOL = {"type": "function", "function": {"name": "stop", "description": "Stops.", "parameters": {"type": "object", "properties": {}}}}
ARGUMENTS = [
    {"city": "Zürich", "days": 3},
    "{\"city\": \"Zürich\", \"days\": 3}",
    {},
    "",
    {"s": "a\n\"b\"", "l": [1, None, True, {"k": "<v>"}], "f": 1.0, "e": None},
    None,
    "not json",
    [1],
]
CONTENTS = [
    "Hello", "", None, [], [{"type": "text", "text": "part"}], [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
    [{"type": "image"}, {"type": "text", "text": "see"}], "  spaced \n", "<think>why</think>\n\nso", "a<think>b</think>c</think>d", "é🙂 <|im_end|>", ["x"], {"k": 1}, 5,
    "<tool_response>x</tool_response>",
]


def message(rng, role, is_tame):
    entry = {"role": role}
    usual = is_tame or rng.random() < 0.6
    content = rng.choice(CONTENTS[:2] + ["What now?", "Tell me."]) if usual else rng.choice(CONTENTS)
    if is_tame or rng.random() < 0.97:
        entry["content"] = content
    if role == "assistant":
        if rng.random() < 0.25:
            entry["reasoning_content"] = rng.choice(["because", "", None, "\nlong\nthought\n"])
        if rng.random() < 0.15:
            entry["thinking"] = "hm"
        if rng.random() < 0.35:
            calls = []
            for _ in range(rng.choice([1, 1, 1, 2, 0])):
                arguments = rng.choice(ARGUMENTS[:2]) if is_tame or rng.random() < 0.6 else rng.choice(ARGUMENTS)
                function = {"name": "get_weather", "arguments": arguments}
                if is_tame or rng.random() < 0.85:
                    calls.append({"id": rng.choice(["abcdefghi", "call_1"]), "type": "function", "function": function})
                else:
                    calls.append(function)
            entry["tool_calls"] = calls
            if rng.random() < 0.5:
                entry["content"] = rng.choice([None, ""])
    if role == "tool":
        if rng.random() < 0.7:
            entry["tool_call_id"] = "abcdefghi"
        if rng.random() < 0.7:
            entry["name"] = "get_weather"
    return entry


def conversation(rng):
    is_tame = rng.random() < 0.6
    roles = []
    if rng.random() < 0.5:
        roles.append(rng.choice(["system", "system", "developer"]))
    for _ in range(rng.choice([0, 1, 1, 2, 3])):
        if not is_tame and rng.random() < 0.2:
            roles.append(rng.choice(["user", "assistant", "tool", "ipython", "critic", "system"]))
        roles += ["user", "assistant"]
        while rng.random() < 0.25:
            roles += ["tool", "assistant"] if rng.random() < 0.7 else ["tool", "tool", "assistant"]
    if is_tame or rng.random() < 0.6:
        roles.append("user")
    context = {"messages": [message(rng, role, is_tame) for role in roles]}
    tools = rng.choice(["absent", None, None, [], [TOOL], [TOOL, BARE_TOOL], [TOOL] if is_tame else [TOOL["function"]]])
    if tools != "absent":
        context["tools"] = tools
    if rng.random() < 0.7:
        context["documents"] = None
    context["add_generation_prompt"] = rng.random() < 0.5
    if rng.random() < 0.4:
        context["enable_thinking"] = rng.choice([True, False, None])
    if rng.random() < 0.15:
        context.update(rng.choice([
            {"reasoning_effort": "high"}, {"builtin_tools": ["browser", "python"]}, {"date_string": "1 Jan 2025"}, {"custom_tools": [TOOL]},
            {"tools_in_user_message": False}, {"xml_tools": True}, {"python_tools": True}, {"model_identity": "You are X."}, {"add_vision_id": True}, {"preserve_thinking": True},
        ]))
    if rng.random() < 0.95:
        context["bos_token"] = "<s>"
    if rng.random() < 0.95:
        context["eos_token"] = "</s>"
    return context


def record_conversations():
    rng = random.Random(1)
    contexts = [conversation(rng) for _ in range(220)]
    results = {}
    for path in sorted((HERE / "../templates").glob("*.jinja")):
        source = path.read_bytes().decode()
        results[path.stem] = [result(source, context) for context in contexts]
        errors = sum("error" in entry for entry in results[path.stem])
        print(f"{path.stem}: {len(contexts)} conversations, {errors} errors")
    size = write("conversations.json.gz", {"contexts": contexts, "results": results})
    print(f"{size} bytes of conversations")


if __name__ == "__main__":
    record_expressions()
    record_conversations()
