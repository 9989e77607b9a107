/* The facts of a text, and how it is typed. */
#include "swx_command.h"

#include <string.h>

#include "swx_grammar.h"

/* ---- what needs no parser ---- */

typedef struct {
    const char *text;
    unsigned flags;
} mention;

enum { SEEN_SET = 1 << 30, SEEN_EDITOR = 1 << 29 };

static unsigned mentioned(const uint8_t *start, size_t size)
{
    static const mention words[] = {
        { "alias", SWX_SCAN_PARSE_STATE },
        { "unalias", SWX_SCAN_PARSE_STATE },
        { "BASH_ALIASES", SWX_SCAN_PARSE_STATE },
        { "shopt", SWX_SCAN_PARSE_STATE },
        { "posix", SWX_SCAN_PARSE_STATE },
        { "POSIXLY_CORRECT", SWX_SCAN_PARSE_STATE },
        { "eval", SWX_SCAN_PARSE_STATE },
        { "source", SWX_SCAN_PARSE_STATE },
        { "exec", SWX_SCAN_EXEC },
        { "stty", SWX_SCAN_STTY },
        { "reset", SWX_SCAN_STTY },
        { "tput", SWX_SCAN_STTY },
        { "PS0", SWX_SCAN_PROMPT },
        { "PS1", SWX_SCAN_PROMPT },
        { "PS2", SWX_SCAN_PROMPT },
        { "PROMPT_COMMAND", SWX_SCAN_PROMPT },
        { "promptvars", SWX_SCAN_PROMPT },
        { "activate", SWX_SCAN_PROMPT },
        { "deactivate", SWX_SCAN_PROMPT },
        { "conda", SWX_SCAN_PROMPT },
        { "mamba", SWX_SCAN_PROMPT },
        { "micromamba", SWX_SCAN_PROMPT },
        { "starship", SWX_SCAN_PROMPT },
        { "set", SEEN_SET },
        { "emacs", SEEN_EDITOR },
        { "vi", SEEN_EDITOR },
        { "jobs", SWX_SCAN_JOBS },
        { "wait", SWX_SCAN_JOBS },
        { "fg", SWX_SCAN_JOBS },
        { "bg", SWX_SCAN_JOBS },
        { "disown", SWX_SCAN_JOBS },
        { "CHLD", SWX_SCAN_CHLD },
        { "SIGCHLD", SWX_SCAN_CHLD },
    };
    for (size_t i = 0; i < SWX_COUNT(words); i++) {
        if (same(start, size, words[i].text)) {
            return words[i].flags;
        }
    }
    return 0;
}

/* Bit n of sizes[c]: one of the words has n letters and begins with c.  Few words of a text get past it.
 * Control bytes are noticed on the way. */
static unsigned mentions(const uint8_t *text, size_t size)
{
    static const uint32_t sizes[256] = {
        ['a'] = 1 << 5 | 1 << 8,  ['u'] = 1 << 7,
        ['B'] = 1 << 12,          ['s'] = 1 << 3 | 1 << 4 | 1 << 5 | 1 << 6 | 1 << 8,
        ['p'] = 1 << 5 | 1 << 10, ['P'] = 1 << 3 | 1 << 14 | 1 << 15,
        ['e'] = 1 << 4 | 1 << 5,  ['r'] = 1 << 5,
        ['t'] = 1 << 4,           ['d'] = 1 << 6 | 1 << 10,
        ['c'] = 1 << 5,           ['m'] = 1 << 5 | 1 << 10,
        ['v'] = 1 << 2,           ['j'] = 1 << 4,
        ['w'] = 1 << 4,           ['f'] = 1 << 2,
        ['b'] = 1 << 2,           ['C'] = 1 << 4,
        ['S'] = 1 << 7,
    };
    const uint8_t *at = text, *end = text + size;
    unsigned found = 0, classes = 0;
    while (at < end) {
        uint8_t class = swx_class[*at];
        if (!(class & NAME)) {
            classes |= class;
            at++;
            continue;
        }
        const uint8_t *start = at;
        while (at < end && swx_class[*at] & NAME) {
            at++;
        }
        size_t length = (size_t)(at - start);
        if (length < 16 && sizes[*start] & (uint32_t)1 << length) {
            found |= mentioned(start, length);
        }
    }
    return found | (classes & CONTROL ? SWX_SCAN_CONTROL : 0);
}

/* A `.` that could be the command: only asked for when the parser did not get to know. */
static bool maybe_dot(const uint8_t *text, size_t size)
{
    const uint8_t *at = text, *end = text + size;
    while ((at = memchr(at, '.', (size_t)(end - at)))) {
        if ((at == text || swx_class[at[-1]] & (BLANK | META)) && at + 1 < end && swx_class[at[1]] & BLANK) {
            return true;
        }
        at++;
    }
    return false;
}

/* Sets body_start and body_size. */
static void trim(const uint8_t *text, size_t size, swx_scan *out)
{
    size_t start = 0, end = size;
    while (start < size) {
        bool joined = start + 1 < size && text[start] == '\\' && text[start + 1] == '\n';
        if (!joined && !(swx_class[text[start]] & BLANK) && text[start] != '\n') {
            break;
        }
        start += joined ? 2 : 1;
    }
    /* A blank line may be the end of a here-document whose delimiter is blank: then only the last newline goes. */
    bool documents = memmem(text, size, "<<", 2) != NULL;
    for (bool first = true; first || !documents; first = false) {
        size_t at = end;
        while (!documents && at > start && swx_class[text[at - 1]] & BLANK) {
            at--;
        }
        if (at == start || text[at - 1] != '\n' || odd_backslashes(text + start, text + at - 1)) {
            break;
        }
        end = at - 1;
    }
    out->body_start = start;
    out->body_size = end - start;
}

static void measure_lines(const uint8_t *text, swx_scan *out)
{
    const uint8_t *at = text + out->body_start, *end = at + out->body_size;
    while (at < end) {
        const uint8_t *found = memchr(at, '\n', (size_t)(end - at));
        size_t size = (size_t)((found ? found : end) - at) + 1;
        out->longest = size > out->longest ? size : out->longest;
        out->flags |= found ? SWX_SCAN_MULTILINE : 0;
        at = found ? found + 1 : end;
    }
    out->flags |= out->longest > SWX_LINE_MAX ? SWX_SCAN_LONG_LINE : 0;
}

static void parse(const uint8_t *text, size_t size, swx_scan *out)
{
    parser p = { .at = text, .end = text + size };
    size_t count = 0;
    bool fine = swx_parse_list(&p, &count) && at_end(&p) && !p.pending;
    out->verdict = !fine ? SWX_UNSURE : count ? SWX_COMPLETE : SWX_EMPTY;
    out->stop = (size_t)(p.at - text);
    out->flags |= p.dot ? SWX_SCAN_PARSE_STATE : 0;
    out->flags |= p.background ? SWX_SCAN_BACKGROUND : 0;
    out->flags |= p.unknown || !fine ? SWX_SCAN_UNKNOWN : 0;
}

void swx_command_scan(const uint8_t *text, size_t size, swx_scan *out)
{
    static const uint8_t nothing[1] = { 0 };
    text = size ? text : nothing;
    *out = (swx_scan){ .verdict = SWX_UNSURE };
    trim(text, size, out);
    measure_lines(text, out);
    unsigned found = mentions(text, size);
    if (found & SEEN_SET && found & SEEN_EDITOR) {
        out->flags |= SWX_SCAN_EDITING;
    }
    out->flags |= found & ~(unsigned)(SEEN_SET | SEEN_EDITOR);
    if (out->flags & SWX_SCAN_CONTROL && memchr(text, 0, size)) {
        out->flags |= SWX_SCAN_NUL;
    } else {
        parse(text, size, out);
        out->verdict = out->body_size ? out->verdict : SWX_EMPTY;
    }
    if (out->verdict == SWX_UNSURE) {
        const uint8_t *start = text + out->body_start, *end = start + out->body_size;
        /* in the last line: no here-document has begun there, or it would be at the end */
        const uint8_t *stop = text + out->stop;
        out->flags |= odd_backslashes(start, end) ? SWX_SCAN_BACKSLASH_END : 0;
        out->flags |= stop < end && !memchr(stop, '\n', (size_t)(end - stop)) ? SWX_SCAN_LINE_END : 0;
        out->flags |= memchr(text, '&', size) ? SWX_SCAN_BACKGROUND : 0;
        out->flags |= maybe_dot(text, size) ? SWX_SCAN_PARSE_STATE : 0;
    }
}

/* ---- delivery ---- */

swx_delivery swx_command_delivery(const swx_scan *scan, bool accepted)
{
    if (scan->flags & SWX_SCAN_NUL) {
        return SWX_DELIVERY_REFUSE;
    }
    if (scan->verdict == SWX_EMPTY) {
        return SWX_DELIVERY_NONE;
    }
    if (scan->flags & SWX_SCAN_BACKSLASH_END && !(scan->flags & SWX_SCAN_LINE_END) && !accepted) {
        return SWX_DELIVERY_DOCUMENT; /* bash accepts it but for a here-document that the text's end ends */
    }
    if (scan->flags & SWX_SCAN_BACKSLASH_END || (scan->verdict != SWX_COMPLETE && !accepted)) {
        return SWX_DELIVERY_EVAL;
    }
    const unsigned late = scan->flags & (SWX_SCAN_PARSE_STATE | SWX_SCAN_EDITING);
    if (scan->flags & SWX_SCAN_MULTILINE && late == SWX_SCAN_PARSE_STATE) {
        return SWX_DELIVERY_EVAL;
    }
    if (scan->flags & (SWX_SCAN_CONTROL | SWX_SCAN_LONG_LINE)) {
        return SWX_DELIVERY_RAW;
    }
    return scan->flags & SWX_SCAN_MULTILINE ? SWX_DELIVERY_GROUP : SWX_DELIVERY_PLAIN;
}

static bool names(const uint8_t *text, size_t size, const char *part)
{
    return memmem(text, size, part, strlen(part)) != NULL;
}

unsigned swx_command_spoils(const swx_scan *scan, const uint8_t *text, size_t size)
{
    unsigned spoils = scan->flags & SWX_SCAN_CHLD ? SWX_SPOILS_GROUP : 0;
    if (scan->flags & SWX_SCAN_PARSE_STATE) {
        spoils |= memchr(text, '{', size) && (names(text, size, "alias") || names(text, size, "BASH_ALIASES"))
                      ? SWX_SPOILS_GROUP | SWX_SPOILS_BRACE
                      : 0;
        spoils |= names(text, size, "eval") && names(text, size, "enable") ? SWX_SPOILS_EVAL : 0;
    }
    return spoils;
}

swx_delivery swx_command_unspoilt(const swx_scan *scan, swx_delivery way, unsigned spoils)
{
    bool group = way == SWX_DELIVERY_GROUP || way == SWX_DELIVERY_RAW;
    if (group && (spoils & SWX_SPOILS_GROUP) && !(scan->flags & SWX_SCAN_EDITING)) {
        way = spoils & SWX_SPOILS_BRACE ? SWX_DELIVERY_EVAL : SWX_DELIVERY_TOGETHER;
    }
    return (spoils & SWX_SPOILS_EVAL) && way >= SWX_DELIVERY_EVAL ? SWX_DELIVERY_SOURCE : way;
}

enum { PIECE = 4000 /* bytes of a typed line before its end; the longest escape and `'\` newline fit above */ };

size_t swx_command_bound(swx_delivery way, size_t size)
{
    if (size > SIZE_MAX / 8) {
        return SIZE_MAX;
    }
    size += 4; /* the group's */
    return way >= SWX_DELIVERY_EVAL ? 4 * size + 4 * size / (PIECE - 16) * 5 + 64 : size + 1;
}

/* Writes one byte of a $'...' piece, returns the bytes written, at most 4. */
static size_t escape(uint8_t c, uint8_t *out)
{
    if (c >= 0x20 && c < 0x7f && c != '\\' && c != '\'') {
        out[0] = c;
        return 1;
    }
    out[0] = '\\';
    if (c == '\n' || c == '\t' || c == '\\' || c == '\'') {
        out[1] = c == '\n' ? 'n' : c == '\t' ? 't' : c;
        return 2;
    }
    out[1] = (uint8_t)('0' + (c >> 6));
    out[2] = (uint8_t)('0' + (c >> 3 & 7));
    out[3] = (uint8_t)('0' + (c & 7));
    return 4;
}

static swx_status deliver_eval(swx_delivery way, const uint8_t *text, size_t size, swx_buf *out)
{
    uint8_t line[PIECE + 16];
    /* Quoted, because an alias may have any name. */
    const char *start = way == SWX_DELIVERY_SOURCE ? "\\builtin source <(\\builtin printf %s $'"
                        : size && text[0] == '-'   ? "\\builtin eval -- $'"
                                                   : "\\builtin eval $'";
    const char *end = way == SWX_DELIVERY_SOURCE ? "')\n" : "'\n";
    size_t used = strlen(start), at = 0;
    swx_status status = SWX_OK;
    /* At the end of an eval a backslash that quotes nothing makes bash 5.2 go on reading at the terminal, with a stale
     * prompt.  Twice it is one; in a here-document it is text, and a newline ends its line. */
    const char *ending = way == SWX_DELIVERY_SOURCE || !odd_backslashes(text, text + size) ? ""
                         : way == SWX_DELIVERY_DOCUMENT                                    ? "\\n"
                                                                                           : "\\\\";
    memcpy(line, start, used);
    while (status == SWX_OK) {
        while (at < size && used < PIECE) {
            used += escape(text[at++], line + used);
        }
        bool last = at == size;
        if (last) {
            memcpy(line + used, ending, strlen(ending));
            used += strlen(ending);
        }
        const char *rest = last ? end : "'\\\n";
        memcpy(line + used, rest, strlen(rest));
        status = swx_buf_append(out, line, used + strlen(rest));
        if (last) {
            break;
        }
        memcpy(line, "$'", 2);
        used = 2;
    }
    return status;
}

static swx_status deliver_body(swx_delivery way, const uint8_t *text, size_t size, swx_buf *out)
{
    swx_scan scan = { 0 };
    trim(text, size, &scan);
    bool group = way != SWX_DELIVERY_PLAIN;
    swx_status status = group ? swx_buf_append(out, "{\n", 2) : SWX_OK;
    if (status == SWX_OK) {
        status = swx_buf_append(out, text + scan.body_start, scan.body_size);
    }
    if (status == SWX_OK) {
        status = group ? swx_buf_append(out, "\n}\n", 3) : swx_buf_append(out, "\n", 1);
    }
    return status;
}

static swx_status deliver_together(const uint8_t *text, size_t size, swx_buf *out)
{
    swx_buf group;
    swx_buf_init(&group, out->limit);
    swx_status status = deliver_body(SWX_DELIVERY_GROUP, text, size, &group);
    status = status == SWX_OK ? deliver_eval(SWX_DELIVERY_EVAL, group.data, group.size - 1, out) : status;
    swx_buf_free(&group);
    return status;
}

swx_status swx_command_encode(swx_delivery way, const uint8_t *text, size_t size, swx_buf *out)
{
    if (way < SWX_DELIVERY_PLAIN || way > SWX_DELIVERY_SOURCE || (size && memchr(text, 0, size))) {
        return SWX_EINVAL;
    }
    if (swx_buf_dropped(out) || swx_command_bound(way, size) > out->limit - out->size) {
        return SWX_ELIMIT;
    }
    static const uint8_t nothing[1] = { 0 };
    text = size ? text : nothing;
    size_t held = out->size;
    uint64_t total = out->total;
    swx_status status = way == SWX_DELIVERY_TOGETHER ? deliver_together(text, size, out)
                        : way >= SWX_DELIVERY_EVAL   ? deliver_eval(way, text, size, out)
                                                     : deliver_body(way, text, size, out);
    if (status != SWX_OK) {
        out->size = held;
        out->total = total;
    }
    return status;
}
