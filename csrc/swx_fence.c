#include "swx_fence.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

enum {
    ESC = 0x1b,
    BEL = 0x07,
    DIGITS = SWX_NONCE_DIGITS + SWX_START_DIGITS,
    RANDOM_BYTES = (DIGITS * 5 + 7) / 8,
    COMMON = 2 + 5 /* ESC ] 7733; */
};

/* Five bits a digit.  The first digits of the two numbers differ, so that a mark's first one tells which it is. */
static void to_digits(const uint8_t bytes[RANDOM_BYTES], char nonce[SWX_NONCE_DIGITS + 1], char start[SWX_START_DIGITS + 1])
{
    static const char digits[] = "0123456789ABCDEFGHIJKLMNOPQRSTUV";
    uint8_t values[DIGITS];
    for (unsigned i = 0; i < DIGITS; i++) {
        unsigned bit = i * 5, two = (unsigned)bytes[bit / 8] << 8 | (bit / 8 + 1 < RANDOM_BYTES ? bytes[bit / 8 + 1] : 0u);
        values[i] = two >> (11 - bit % 8) & 31;
    }
    values[SWX_NONCE_DIGITS] ^= values[SWX_NONCE_DIGITS] == values[0] ? 16 : 0;
    for (unsigned i = 0; i < SWX_NONCE_DIGITS; i++) {
        nonce[i] = digits[values[i]];
    }
    for (unsigned i = 0; i < SWX_START_DIGITS; i++) {
        start[i] = digits[values[SWX_NONCE_DIGITS + i]];
    }
    nonce[SWX_NONCE_DIGITS] = start[SWX_START_DIGITS] = 0;
}

swx_status swx_fence_init(swx_fence *fence, swx_error *err)
{
    uint8_t bytes[RANDOM_BYTES];
    ssize_t got;
    do {
        got = getrandom(bytes, sizeof(bytes), 0);
    } while (got < 0 && errno == EINTR);
    if (got != (ssize_t)sizeof(bytes)) {
        return swx_fail_sys(err, "getrandom", got < 0 ? errno : EIO);
    }
    to_digits(bytes, fence->nonce, fence->start);
    char head[SWX_FENCE_HEAD + 1];
    snprintf(head, sizeof(head), "\033]7733;%s;", fence->nonce);
    memcpy(fence->head, head, SWX_FENCE_HEAD);
    memcpy(fence->start_head, head, COMMON);
    memcpy(fence->start_head + COMMON, fence->start, SWX_START_DIGITS);
    snprintf(fence->ps0, sizeof(fence->ps0), "\\e]7733;%s\\a", fence->start);
    char text[SWX_FENCE_TEXT];
    swx_fence_ps1(fence, text);
    fence->ps1_size = (uint32_t)strlen(text);
    fence->held_size = fence->released = 0;
    return SWX_OK;
}

void swx_fence_ps0(const swx_fence *fence, char *out) { memcpy(out, fence->ps0, sizeof(fence->ps0)); }

void swx_fence_ps1(const swx_fence *fence, char *out)
{
    /* Its length tells when something was put before or behind this text.  A length of PS0 would cost the shell half as much again
     * as PS0 itself, which is what else makes a mark ours: its digits are not those of the nonce. */
    snprintf(out, SWX_FENCE_TEXT, "\\e]7733;%s;%d;$?;\\#;\\j;${#PS1};${PS0-}\\a", fence->nonce, SWX_MARK_PROMPT);
}

static bool take_number(const char **at, uint64_t *value)
{
    const char *p = *at;
    uint64_t sum = 0;
    while (*p >= '0' && *p <= '9' && p - *at < 18) {
        sum = sum * 10 + (uint64_t)(*p++ - '0');
    }
    bool any = p > *at;
    *at = p;
    *value = sum;
    return any;
}

static bool take_byte(const char **at, char wanted)
{
    if (**at != wanted) {
        return false;
    }
    ++*at;
    return true;
}

/* `;CODE`, where CODE is a number or, when the shell does not expand prompts, `$?`. */
static bool take_code(const char **at, int *code)
{
    uint64_t value;
    if (!take_byte(at, ';')) {
        return false;
    }
    if ((*at)[0] == '$' && (*at)[1] == '?') {
        *at += 2;
        *code = -1;
        return true;
    }
    if (!take_number(at, &value) || value > 255) {
        return false;
    }
    *code = (int)value;
    return true;
}

/* The part behind the head, NUL-terminated at `size`, without BEL. */
static bool parse_mark(const swx_fence *fence, const char *text, size_t size, swx_mark *mark)
{
    const char *end = text + size;
    uint64_t value;
    *mark = (swx_mark){ .code = -1 };
    if (*text < '0' + SWX_MARK_PROMPT || *text > '0' + SWX_MARK_END) {
        return false;
    }
    mark->kind = (swx_mark_kind)(*text++ - '0');
    switch (mark->kind) {
    case SWX_MARK_PROMPT:
        if (!take_code(&text, &mark->code) || !take_byte(&text, ';') || !take_number(&text, &mark->number) ||
            !take_byte(&text, ';') || !take_number(&text, &value)) {
            return false;
        }
        mark->jobs = (uint32_t)value;
        if (mark->code < 0) { /* nothing of the rest is expanded either */
            return true;
        }
        if (!take_byte(&text, ';') || !take_number(&text, &value)) {
            return false;
        }
        mark->ps1_size = (uint32_t)value;
        if (!take_byte(&text, ';')) {
            return false;
        }
        mark->ps0_kept = (size_t)(end - text) == sizeof(fence->ps0) - 1 && memcmp(text, fence->ps0, sizeof(fence->ps0) - 1) == 0;
        return true;
    case SWX_MARK_GUARD:
    case SWX_MARK_REPORT:
        if (!take_code(&text, &mark->code)) {
            return false;
        }
        break;
    case SWX_MARK_END:
        if (!take_byte(&text, ';') || !take_number(&text, &value)) {
            return false;
        }
        mark->no_stderr = value == 0; /* whether it is a terminal */
        for (; text < end && ((*text >= 'a' && *text <= 'z') || (*text >= 'A' && *text <= 'Z')); text++) { /* attributes of PS1 */
            mark->fixed_prompt = mark->fixed_prompt || *text == 'r';
        }
        break;
    case SWX_MARK_START:
    case SWX_MARK_VALUE:
        break;
    }
    return text == end;
}

/* How many of these bytes continue what is held as a mark. */
static size_t fitting(const swx_fence *fence, const uint8_t *bytes, size_t size)
{
    size_t at = fence->held_size, count = 0;
    bool is_start = at > COMMON && fence->held[COMMON] == (uint8_t)fence->start[0];
    size_t whole = at < COMMON ? COMMON : is_start ? SWX_START_HEAD : at < SWX_FENCE_HEAD ? SWX_FENCE_HEAD : SWX_MARK_MAX - 1;
    size = size < whole - at ? size : whole - at;
    if (at == COMMON && size) {
        return bytes[0] == fence->head[COMMON] || bytes[0] == (uint8_t)fence->start[0];
    }
    if (at < SWX_FENCE_HEAD) {
        const uint8_t *head = (is_start ? fence->start_head : fence->head) + at;
        while (count < size && bytes[count] == head[count]) {
            count++;
        }
        return count;
    }
    /* The last field of a prompt's mark is a text of the user's when PS0 is.  But an escape may begin the true mark behind half of one. */
    if (at > SWX_FENCE_HEAD && fence->held[SWX_FENCE_HEAD] == '0' + SWX_MARK_PROMPT) {
        while (count < size && bytes[count] != BEL && bytes[count] != ESC) {
            count++;
        }
        return count;
    }
    while (count < size && bytes[count] >= ' ' && bytes[count] < 0x7f) {
        count++;
    }
    return count;
}

static swx_fence_event release(swx_fence *fence, const uint8_t **plain, size_t *plain_size)
{
    *plain = fence->held;
    *plain_size = fence->released = fence->held_size;
    return SWX_FENCE_PLAIN;
}

swx_fence_event swx_fence_next(swx_fence *fence, const uint8_t **bytes, size_t *size, const uint8_t **plain,
                               size_t *plain_size, swx_mark *mark)
{
    if (fence->released) { /* given out by the last call */
        fence->held_size = fence->released = 0;
    }
    while (*size) {
        if (!fence->held_size) {
            const uint8_t *escape = memchr(*bytes, ESC, *size);
            size_t before = escape ? (size_t)(escape - *bytes) : *size;
            if (before) {
                *plain = *bytes;
                *plain_size = before;
                *bytes += before;
                *size -= before;
                return SWX_FENCE_PLAIN;
            }
        }
        size_t count = fitting(fence, *bytes, *size);
        if (count) {
            memcpy(fence->held + fence->held_size, *bytes, count);
            fence->held_size += count;
            *bytes += count;
            *size -= count;
            continue;
        }
        bool is_start = fence->held_size == SWX_START_HEAD && fence->held[COMMON] == (uint8_t)fence->start[0];
        if (**bytes != BEL || (!is_start && fence->held_size <= SWX_FENCE_HEAD)) {
            return release(fence, plain, plain_size); /* the byte itself may begin a mark: it stays in the input */
        }
        ++*bytes;
        --*size;
        if (is_start) {
            fence->held_size = 0;
            *mark = (swx_mark){ .kind = SWX_MARK_START, .code = -1 };
            return SWX_FENCE_MARK;
        }
        char text[SWX_MARK_MAX];
        size_t fields = fence->held_size - SWX_FENCE_HEAD;
        memcpy(text, fence->held + SWX_FENCE_HEAD, fields);
        text[fields] = 0;
        if (parse_mark(fence, text, fields, mark)) {
            fence->held_size = 0;
            return SWX_FENCE_MARK;
        }
        fence->held[fence->held_size++] = BEL; /* our nonce, but not our format: output */
        return release(fence, plain, plain_size);
    }
    return SWX_FENCE_MORE;
}
