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
    { E "[12\nx", E "[12\nx" },                        /* malformed: as it was */
    { E "[1" E "[2mx", E "[1x" },                      /* the second is one */
    { E "[1 2mx", E "[1 2mx" },                        /* a parameter after an intermediate */
    { E E E "[mx", E E "x" },
    { E "]0;no end\nx" E "[m", E "]0;no end\nx" },     /* a newline ends an OSC */
    { E "]0;no end" E "[mx" E "]1;\a", E "]0;no endx" },
    { E "Pabc\x18" "d" E "[1\x1a" "e", E "Pabc\x18" "d" E "[1\x1a" "e" },
    { E "Pabc", E "Pabc" },                            /* unfinished at the end */
    { "x" E, "x" E },
    { E "\n" E "\xc3\xa9" E "\x7f", E "\n" E "\xc3\xa9" E "\x7f" },
    { "\x9b" "31m\xff", "\x9b" "31m\xff" },            /* no 8-bit controls in UTF-8 */
};

static const example CRLF[] = {
    { "a\r\nb\rc\r\r\nd\n\r", "a\nb\rc\r\nd\n\r" },
    { "a\r" E "[m\nb", "a\nb" },
    { "\r" E "[1\n", "\r" E "[1\n" },
    { "\r" E, "\r" E },
    { E "]x\r\ny", E "]x\ny" },
    { "\r", "\r" },
};

static size_t run(const uint8_t *in, size_t size, size_t chunk, bool crlf, uint8_t *out)
{
    swx_strip strip;
    size_t written, total = 0;
    swx_strip_init(&strip, crlf);
    for (size_t at = 0; at < size; at += chunk) {
        size_t n = size - at < chunk ? size - at : chunk;
        uint8_t *room = malloc(n + SWX_STRIP_EXTRA); /* the promised room and no more */
        swx_strip_feed(&strip, in + at, n, room, &written);
        CHECK(written <= n + SWX_STRIP_EXTRA);
        memcpy(out + total, room, written);
        total += written;
        free(room);
    }
    swx_strip_finish(&strip, out + total, &written);
    CHECK(written <= SWX_STRIP_EXTRA && strip.size == 0 && !strip.carriage);
    return total + written;
}

static void expect(const example *e, bool crlf)
{
    size_t size = strlen(e->in), wanted = strlen(e->out);
    uint8_t out[1024];
    for (size_t chunk = 1; chunk <= size + 1; chunk++) {
        CHECK(run((const uint8_t *)e->in, size, chunk, crlf, out) == wanted);
        CHECK(memcmp(out, e->out, wanted) == 0);
    }
    memcpy(out, e->in, size);
    CHECK(swx_strip_whole(out, size, crlf) == wanted && memcmp(out, e->out, wanted) == 0);
}

static void test_examples_at_every_cut(void)
{
    for (size_t i = 0; i < SWX_COUNT(EXAMPLES); i++) {
        expect(&EXAMPLES[i], false);
    }
    for (size_t i = 0; i < SWX_COUNT(CRLF); i++) {
        expect(&CRLF[i], true);
    }
}

/* A sequence of SWX_STRIP_HELD bytes goes; one byte more and all but its two-byte end stays. */
static void test_limit(void)
{
    static uint8_t in[3 * SWX_STRIP_HELD], out[3 * SWX_STRIP_HELD + SWX_STRIP_EXTRA];
    static const char *const starts[] = { E "]", E "P", E "[", E "(" }, *const ends[] = { E "\\", E "\\", "m", "B" };
    for (size_t kind = 0; kind < SWX_COUNT(starts); kind++) {
        size_t end = strlen(ends[kind]);
        for (size_t size = SWX_STRIP_HELD - 3; size < SWX_STRIP_HELD + 4; size++) {
            memset(in, kind == 3 ? ' ' : '0', size);
            memcpy(in, starts[kind], 2);
            memcpy(in + size - end, ends[kind], end);
            in[size] = 'x';
            size_t kept = size <= SWX_STRIP_HELD ? 0 : kind < 2 ? size - 2 : size;
            for (size_t chunk = 1; chunk < 5000; chunk += 1111) {
                CHECK(run(in, size + 1, chunk, true, out) == kept + 1);
                CHECK(memcmp(out, in, kept) == 0 && out[kept] == 'x');
            }
            memcpy(out, in, size + 1);
            CHECK(swx_strip_whole(out, size + 1, true) == kept + 1);
        }
    }
}

static void test_held_back_and_carriage_return_fit(void)
{
    static uint8_t in[SWX_STRIP_HELD + 1], out[2 * SWX_STRIP_HELD + 2];
    swx_strip strip;
    size_t written;
    memset(in, 'x', sizeof(in));
    memcpy(in, "\r" E "P", 3);
    swx_strip_init(&strip, true);
    swx_strip_feed(&strip, in, SWX_STRIP_HELD, out, &written);
    CHECK(written == 0);
    swx_strip_feed(&strip, (const uint8_t *)"y", 1, out, &written);
    CHECK(written == SWX_STRIP_HELD + 1 && memcmp(out, in, SWX_STRIP_HELD) == 0 && out[SWX_STRIP_HELD] == 'y');
    swx_strip_feed(&strip, NULL, 0, out, &written);
    CHECK(written == 0);
    CHECK(swx_strip_whole(NULL, 0, true) == 0);
}

TEST_MAIN(test_examples_at_every_cut, test_limit, test_held_back_and_carriage_return_fit)
