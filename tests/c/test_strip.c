#include "swx_strip.h"
#include "harness.h"

typedef struct {
    const char *in, *out;
} example;

#define E "\x1b"

static const example EXAMPLES[] = {
    { "", "" },
    { "plain\r\n\b\a\t", "plain\r\n\b\a\t" },
    { "a" E "[1;31mred" E "[0m" E "[mb", "aredb" },
    { E "[?25l" E "[2 q" E "[>4;2m" E "[38:2::1:2:3mx", "x" },
    { E "]0;title\ax" E "]8;;http://a/" E "\\link" E "]8;;" E "\\", "xlink" },
    { E "Pq#0\nsixel" E "\\a" E "X1" E "\\b" E "^2" E "\\c" E "_3" E "\\d", "abcd" },
    { E "(B" E "#8" E "%G" E " Fx" E "7" E "8" E "=" E ">" E "c" E "My" E "\\z", "xyz" },
    { E "[12\nx", "[12\nx" },   /* of what is no sequence only the ESC goes */
    { E "[1" E "[2mx", "[1x" }, /* the second is one */
    { E "[1 2mx", "[1 2mx" },   /* a parameter after an intermediate */
    { E E E "[mx", "x" },
    { E E "[m]52;c;YQ==\a", "]52;c;YQ==\a" }, /* taking one out does not make another */
    { E "[" E "[m31mx" E "]" E "[m0;t\a", "[31mx]0;t\a" },
    { E "]0;no end\nx" E "[m", "]0;no end\nx" }, /* a newline ends an OSC */
    { E "]0;no end" E "[mx" E "]1;\a", "]0;no endx" },
    { E "Pabc\x18"
        "d" E "[1\x1a"
        "e",
      "Pabc\x18"
      "d[1\x1a"
      "e" },
    { E "Pabc", "Pabc" },
    { E "]abc" E, "]abc" }, /* unfinished at the end */
    { "x" E, "x" },
    { E "\n" E "\xc3\xa9" E "\x7f", "\n\xc3\xa9\x7f" },
    { "\x9b"
      "31m\xff\x80",
      "\x9b"
      "31m\xff\x80" }, /* no 8-bit controls in UTF-8 */
    { "\xc2\x9b"
      "31m\xc2\x80\xc2\x9f\xc2\xa0\xc2",
      "\x9b"
      "31m\x80\x9f\xc2\xa0\xc2" }, /* C1 */
    { "\xc2" E "[m\x9b", "\x9b" },
    { "\xc2\xc2\xa9", "\xc2\xc2\xa9" },
    { "\xc2\xc2"
      "a\x9b",
      "\xc2\xc2"
      "a\x9b" },
    { "\xc2\xc2\x9b\x9bx", "\xc2x" },
    { "\xc2\xc2\x9b\xc2\xc2\x9b\x85y\x85", "\xc2\xc2\x85y\x85" },
    { "a\xc2\x85"
      "b\xc2",
      "a\xc2\x85"
      "b\xc2" }, /* NEL */
    { E "]\xc2\x9bx\n", "]\x9bx\n" },
};

static const example CRLF[] = {
    { "a\r\nb\rc\r\r\nd\n\r", "a\nb\rc\r\nd\n\r" },
    { "a\r" E "[m\nb" E "[1\r" E "[m\n\r\xc2", "a\nb[1\n\r\xc2" },
};

static size_t run(const uint8_t *in, size_t size, size_t chunk, uint8_t *out)
{
    swx_strip strip;
    size_t written, total = 0;
    swx_strip_init(&strip);
    for (size_t at = 0; at < size; at += chunk) {
        size_t n = size - at < chunk ? size - at : chunk;
        uint8_t *room = malloc(n + SWX_STRIP_HELD); /* the promised room and no more */
        written = swx_strip_feed(&strip, in + at, n, room);
        CHECK(written <= n + SWX_STRIP_HELD);
        memcpy(out + total, room, written);
        total += written;
        free(room);
    }
    written = swx_strip_finish(&strip, out + total);
    CHECK(written <= SWX_STRIP_HELD && strip.size == 0 && !strip.lead && !strip.stray);
    total += written;
    CHECK(!swx_strip_needed(out, total));
    return total;
}

static void expect_whole(const example *e, bool crlf)
{
    size_t size = strlen(e->in), wanted = strlen(e->out);
    uint8_t out[1024];
    memcpy(out, e->in, size);
    CHECK(swx_strip_whole(out, size, crlf) == wanted && memcmp(out, e->out, wanted) == 0);
}

static void test_examples_at_every_cut(void)
{
    for (size_t i = 0; i < SWX_COUNT(EXAMPLES); i++) {
        const example *e = &EXAMPLES[i];
        size_t size = strlen(e->in), wanted = strlen(e->out);
        uint8_t out[1024];
        for (size_t chunk = 1; chunk <= size + 1; chunk++) {
            CHECK(run((const uint8_t *)e->in, size, chunk, out) == wanted);
            CHECK(memcmp(out, e->out, wanted) == 0);
        }
        expect_whole(e, false);
    }
    for (size_t i = 0; i < SWX_COUNT(CRLF); i++) {
        expect_whole(&CRLF[i], true);
    }
}

/* A sequence of SWX_STRIP_HELD bytes goes; one byte more and all but its ESC and its two-byte end stays. */
static void test_limit(void)
{
    static uint8_t in[3 * SWX_STRIP_HELD], out[4 * SWX_STRIP_HELD];
    static const char *const starts[] = { E "]", E "P", E "[", E "(" }, *const ends[] = { E "\\", E "\\", "m", "B" };
    for (size_t kind = 0; kind < SWX_COUNT(starts); kind++) {
        size_t end = strlen(ends[kind]);
        for (size_t size = SWX_STRIP_HELD - 3; size < SWX_STRIP_HELD + 4; size++) {
            memset(in, kind == 3 ? ' ' : '0', size);
            memcpy(in, starts[kind], 2);
            memcpy(in + size - end, ends[kind], end);
            in[size] = 'x';
            size_t kept = size <= SWX_STRIP_HELD ? 0 : kind < 2 ? size - 3 : size - 1;
            for (size_t chunk = 1; chunk < 5000; chunk += 1111) {
                CHECK(run(in, size + 1, chunk, out) == kept + 1);
                CHECK(memcmp(out, in + 1, kept) == 0 && out[kept] == 'x');
            }
            memcpy(out, in, size + 1);
            CHECK(swx_strip_whole(out, size + 1, true) == kept + 1);
        }
    }
}

static void test_what_was_held_back_fits(void)
{
    static uint8_t in[SWX_STRIP_HELD], out[SWX_STRIP_HELD + 1];
    swx_strip strip;
    size_t written;
    memset(in, 'x', sizeof(in));
    memcpy(in, "\xc2" E "P", 3);
    swx_strip_init(&strip);
    written = swx_strip_feed(&strip, in, SWX_STRIP_HELD, out);
    CHECK(written == 0);
    written = swx_strip_feed(&strip, (const uint8_t *)"y", 1, out);
    CHECK(written == SWX_STRIP_HELD && memcmp(out, "\xc2Px", 3) == 0 && out[SWX_STRIP_HELD - 1] == 'y');
    written = swx_strip_feed(&strip, NULL, 0, out);
    CHECK(written == 0);
    CHECK(swx_strip_whole(NULL, 0, true) == 0);
}

TEST_MAIN(test_examples_at_every_cut, test_limit, test_what_was_held_back_fits)
