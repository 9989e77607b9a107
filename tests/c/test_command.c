#include "swx_command.h"
#include "harness.h"

#include "alloc.h"

/* In a block of its exact size, so that the sanitizer sees a read beyond it. */
static swx_scan scan_exactly(const char *text, size_t size)
{
    swx_scan scan;
    uint8_t *copy = malloc(size ? size : 1);
    CHECK(copy);
    memcpy(copy, text, size);
    swx_command_scan(copy, size, &scan);
    CHECK(scan.body_start + scan.body_size <= size);
    free(copy);
    return scan;
}

static const char *const COMPLETE[] = {
    "a",
    "a b|c&&d||e;f&g",
    "a 'x' \"y $(z \"w\") ${v:-u} `t \\` s`\" $'r\\'q' $\"p\"",
    "a=1 b+=2 'c'=3",
    "a=() b+=(c \"$d\" e=f[1])>g",
    "cat <<E>f\nx\nE\ncat <<-'F'>g\n\ty\\\n\tF\nh",
    "if a;then b;elif c;then d;else e;fi>f",
    "while a;do b;done;until c\ndo d;done",
    "for a in b c;do d;done;for e;do f;done",
    "{ a;};(b)2>c;((d+(1<<2)))",
    "a(){ b;}>c;d()\n(e)",
    "[[ -f a ]]&&[[ ! b = c* ]]||[[ d -nt e ]]",
    "! a|b;time c",
    "a $((1+(b)*$c))",
    "a <(b) >(c) 3<&- < <(d) > >(e) 2>&1",
    "a 2>&1 3<&- >|d &>e &>>e <<<f <>g",
    "a \\\n b \\\n\\\nc",
    "a#b # c",
    "a $$ $? ${!b} ${c//d/e} ${f[@]} $",
};

static void test_verdicts_of_every_prefix(void)
{
    for (size_t i = 0; i < SWX_COUNT(COMPLETE); i++) {
        size_t size = strlen(COMPLETE[i]);
        CHECK(scan_exactly(COMPLETE[i], size).verdict == SWX_COMPLETE);
        for (size_t cut = 0; cut < size; cut++) {
            scan_exactly(COMPLETE[i], cut);
            scan_exactly(COMPLETE[i] + cut, size - cut);
        }
    }
}

static void test_empty(void)
{
    swx_scan scan;
    swx_command_scan(NULL, 0, &scan);
    CHECK(scan.verdict == SWX_EMPTY && scan.flags == 0 && scan.body_size == 0);
    swx_command_scan((const uint8_t *)" # a\n\t\n", 7, &scan);
    CHECK(scan.verdict == SWX_EMPTY && scan.body_start == 1 && scan.body_size == 3);
    swx_command_scan((const uint8_t *)"\n \n a \nb  \n\n \n", 14, &scan);
    CHECK(scan.verdict == SWX_COMPLETE && scan.body_start == 4 && scan.body_size == 6);
}

static void test_flags(void)
{
    /* of those that do not depend on which commands are known */
    const unsigned judged = ~(unsigned)(SWX_SCAN_UNKNOWN | SWX_SCAN_LINE_END);
    static const struct {
        const char *text;
        unsigned flags;
    } cases[] = {
        { "echo hi", 0 },
        { "\n  echo hi  \n \n", 0 },
        { "a\nb", SWX_SCAN_MULTILINE },
        { "a \\\n", SWX_SCAN_MULTILINE },
        { "a \\", SWX_SCAN_BACKSLASH_END },
        { "a \\\\", 0 },
        { "a # \\", 0 },
        { "a\rb", SWX_SCAN_CONTROL },
        { "a\177", SWX_SCAN_CONTROL },
        { "a\tb", 0 },
        { ". x", SWX_SCAN_PARSE_STATE },
        { "a=1 . x", SWX_SCAN_PARSE_STATE },
        { "ls . x", 0 },
        { "'; . x", SWX_SCAN_PARSE_STATE },
        { "'; find . -name x; ls . | y", 0 },
        { "aliases; my_alias; shopts", 0 },
        { "a & b", SWX_SCAN_BACKGROUND },
        { "(a &)", SWX_SCAN_BACKGROUND },
        { "a && b 2>&1 &> c '&'", 0 },
        { "'&", SWX_SCAN_BACKGROUND },
        { "set -o emacs", SWX_SCAN_EDITING },
        { "vi x", 0 },
    };
    swx_scan scan;
    for (size_t i = 0; i < SWX_COUNT(cases); i++) {
        swx_command_scan((const uint8_t *)cases[i].text, strlen(cases[i].text), &scan);
        CHECK((scan.flags & judged) == cases[i].flags);
    }
    swx_command_scan((const uint8_t *)"a\0b", 3, &scan);
    CHECK((scan.flags & judged) == (SWX_SCAN_CONTROL | SWX_SCAN_NUL));
}

static void test_mentions(void)
{
    static const struct {
        unsigned flags;
        const char *words;
    } mentions[] = {
        { SWX_SCAN_PARSE_STATE, "alias unalias BASH_ALIASES shopt posix POSIXLY_CORRECT eval source" },
        { SWX_SCAN_EXEC, "exec" },
        { SWX_SCAN_STTY, "stty reset tput" },
        { SWX_SCAN_PROMPT,
          "PS0 PS1 PS2 PROMPT_COMMAND promptvars starship activate deactivate conda mamba micromamba" },
        { SWX_SCAN_JOBS, "jobs wait fg bg disown" },
        { SWX_SCAN_UNKNOWN, "wait read readarray mapfile select" },
        { SWX_SCAN_CHLD, "CHLD SIGCHLD" },
    };
    for (size_t i = 0; i < SWX_COUNT(mentions); i++) {
        char words[128], *rest = words;
        strcpy(words, mentions[i].words);
        for (char *word; (word = strsep(&rest, " "));) {
            char text[64];
            swx_scan scan;
            snprintf(text, sizeof(text), "echo 'a/%s-'", word);
            swx_command_scan((const uint8_t *)text, strlen(text), &scan);
            CHECK((scan.flags & mentions[i].flags) == mentions[i].flags);
            snprintf(text, sizeof(text), "echo x%s _%s %sx", word, word, word);
            swx_command_scan((const uint8_t *)text, strlen(text), &scan);
            CHECK(scan.flags == 0);
        }
    }
}

static bool sends_stderr_elsewhere(const char *text)
{
    swx_scan scan;
    swx_command_scan((const uint8_t *)text, strlen(text), &scan);
    return swx_command_hints(&scan, (const uint8_t *)text, strlen(text), true) & SWX_HINT_STDERR;
}

static void test_redirections_of_stderr(void)
{
    const char *sent[] = { "exec 2>f",     "exec &>f",          "exec >&f",      "exec 1>&2",
                           "exec >f 2>&1", "exec 3>&1 >f 2>&1", "exec 3>&2 2>&3" };
    const char *kept[] = { "exec >f",        "exec 2>&1",     "exec 3>&1", "exec 10>&1",
                           "exec 3>&1 4>&2", "exec 3>f 2>&1", "echo 2>f" };
    for (unsigned i = 0; i < SWX_COUNT(sent); i++) {
        CHECK(sends_stderr_elsewhere(sent[i]) && !sends_stderr_elsewhere(kept[i]));
    }
}

static void expect_way(const char *text, bool accepted, unsigned spoils, bool elsewhere, swx_delivery way)
{
    swx_scan scan;
    swx_command_scan((const uint8_t *)text, strlen(text), &scan);
    CHECK(swx_command_delivery(&scan, accepted, spoils, elsewhere) == way);
}

static void test_delivery(void)
{
    static char line[4097], two[4099];
    const unsigned spoilt = SWX_SPOILS_GROUP, brace = SWX_SPOILS_GROUP | SWX_SPOILS_BRACE;
    memset(line, 'x', 4095);
    snprintf(two, sizeof(two), "%s\ny", line);
    expect_way("", false, 0, false, SWX_DELIVERY_NONE);
    expect_way(" \\\n", false, 0, false, SWX_DELIVERY_NONE);
    expect_way(line + 1, false, 0, false, SWX_DELIVERY_PLAIN);
    expect_way("coproc x", false, 0, false, SWX_DELIVERY_EVAL);
    expect_way("coproc x", true, 0, false, SWX_DELIVERY_PLAIN);
    expect_way("a\nb", false, 0, false, SWX_DELIVERY_GROUP);
    expect_way("a\nb", false, spoilt, false, SWX_DELIVERY_TOGETHER);
    expect_way("a\nb", false, brace, false, SWX_DELIVERY_EVAL);
    expect_way("alias a=b; a", false, 0, false, SWX_DELIVERY_PLAIN);
    expect_way("alias a=b\na", false, 0, false, SWX_DELIVERY_EVAL);
    expect_way("alias a=b\na", false, SWX_SPOILS_EVAL, false, SWX_DELIVERY_SOURCE);
    expect_way("alias a=b\nset -o vi", false, 0, false, SWX_DELIVERY_GROUP);
    expect_way("alias a=b\nset -o vi", false, brace, false, SWX_DELIVERY_GROUP);
    expect_way("a\rb", false, 0, false, SWX_DELIVERY_RAW);
    expect_way("a \\", true, 0, false, SWX_DELIVERY_EVAL);
    expect_way("a <<E \\", false, 0, false, SWX_DELIVERY_EVAL);
    expect_way("a <<E\nb\\", false, 0, false, SWX_DELIVERY_DOCUMENT);
    expect_way(line, false, 0, false, SWX_DELIVERY_RAW);
    expect_way(line, false, 0, true, SWX_DELIVERY_EVAL);
    expect_way(line, false, SWX_SPOILS_EVAL, true, SWX_DELIVERY_SOURCE);
    expect_way(line, false, spoilt, false, SWX_DELIVERY_EVAL);
    expect_way(line + 4095 - 1023, false, spoilt, false, SWX_DELIVERY_EVAL);
    expect_way(line + 4095 - 1022, false, spoilt, false, SWX_DELIVERY_PLAIN);
    expect_way(two, false, 0, false, SWX_DELIVERY_RAW);
    expect_way(two, false, spoilt, true, SWX_DELIVERY_TOGETHER);
    expect_way(two, false, spoilt | SWX_SPOILS_EVAL, true, SWX_DELIVERY_SOURCE_TOGETHER);
    expect_way(two, false, brace, true, SWX_DELIVERY_EVAL);
    snprintf(two, sizeof(two), "y\n%s", line);
    expect_way(two, false, 0, false, SWX_DELIVERY_RAW);
    two[2 + 4094] = 0;
    expect_way(two, false, 0, false, SWX_DELIVERY_GROUP);
}

static void test_depth_is_bounded(void)
{
    static const char *const openers[] = { "$(",  "\"$(", "${a:-", "( ",          "{ ",
                                           "if ", "$((",  "! (",   "for a in $(", "a=${b-\"$(" };
    for (size_t i = 0; i < SWX_COUNT(openers); i++) {
        size_t one = strlen(openers[i]), size = one * 100000;
        uint8_t *text = malloc(size);
        swx_scan scan;
        for (size_t at = 0; at < size; at++) {
            text[at] = (uint8_t)openers[i][at % one];
        }
        swx_command_scan(text, size, &scan);
        CHECK(scan.verdict == SWX_UNSURE);
        free(text);
    }
}

static void expect_typed(swx_delivery way, const char *text, const char *typed)
{
    swx_buf out;
    swx_buf_init(&out, 1 << 20);
    CHECK(swx_command_encode(way, (const uint8_t *)text, strlen(text), &out) == SWX_OK);
    CHECK(out.size == strlen(typed) && memcmp(out.data, typed, out.size) == 0);
    swx_buf_free(&out);
}

static void test_typed_bytes(void)
{
    expect_typed(SWX_DELIVERY_PLAIN, "\n a b \n\n", "a b \n");
    expect_typed(SWX_DELIVERY_GROUP, "a\nb # c\n", "{\na\nb # c\n}\n");
    expect_typed(SWX_DELIVERY_GROUP, "a \\\n", "{\na \\\n\n}\n");
    expect_typed(SWX_DELIVERY_EVAL, "'b\\\t!\n\0031\xff", "\\builtin eval $'\\047b\\\\\\t!\\n\\0031\\377'\n");
    expect_typed(SWX_DELIVERY_EVAL, "-a", "\\builtin eval -- $'-a'\n");
    expect_typed(SWX_DELIVERY_EVAL, "", "\\builtin eval $''\n");
    expect_typed(SWX_DELIVERY_EVAL, "a \\", "\\builtin eval $'a \\\\\\\\'\n");
    expect_typed(SWX_DELIVERY_TOGETHER, "a\nb # c\n", "\\builtin eval $'{\\na\\nb # c\\n}'\n");
    expect_typed(SWX_DELIVERY_SOURCE, "-a\n'\\", "\\builtin source <(\\builtin printf %s $'-a\\n\\047\\\\')\n");
    expect_typed(SWX_DELIVERY_SOURCE_TOGETHER, "a\nb\n", "\\builtin source <(\\builtin printf %s $'{\\na\\nb\\n}')\n");
    expect_typed(SWX_DELIVERY_DOCUMENT, "a <<b\\", "\\builtin eval $'a <<b\\\\\\n'\n");
}

static void test_refusals(void)
{
    swx_buf out;
    swx_buf_init(&out, 64);
    CHECK(swx_command_encode(SWX_DELIVERY_EVAL, (const uint8_t *)"a\0b", 3, &out) == SWX_EINVAL);
    CHECK(swx_command_encode(SWX_DELIVERY_NONE, (const uint8_t *)"a", 1, &out) == SWX_EINVAL);
    for (swx_delivery way = SWX_DELIVERY_PLAIN; way <= SWX_DELIVERY_SOURCE_TOGETHER; way++) {
        uint8_t text[64] = { 0 };
        memset(text, 'a', sizeof(text));
        CHECK(swx_command_encode(way, text, sizeof(text), &out) == SWX_ELIMIT);
        swx_buf_free(&out);
    }
}

#ifdef SWX_ALLOC_TEST
static void test_failing_allocations(void)
{
    static uint8_t text[20000];
    memset(text, 'x', sizeof(text));
    for (swx_delivery way = SWX_DELIVERY_PLAIN; way <= SWX_DELIVERY_SOURCE_TOGETHER; way++) {
        for (unsigned long n = 1;; n++) {
            swx_buf out;
            swx_buf_init(&out, 1 << 20);
            swx_alloc_fail_at(n, 0);
            swx_status status = swx_command_encode(way, text, sizeof(text), &out);
            swx_alloc_fail_at(0, 0);
            CHECK(status == SWX_OK || status == SWX_ENOMEM);
            swx_buf_free(&out);
            if (status == SWX_OK) {
                break;
            }
        }
    }
    CHECK(swx_alloc_live() == 0);
}
#else
static void test_failing_allocations(void) {}
#endif

TEST_MAIN(test_verdicts_of_every_prefix, test_empty, test_flags, test_mentions, test_redirections_of_stderr,
          test_delivery, test_depth_is_bounded, test_typed_bytes, test_refusals, test_failing_allocations)
