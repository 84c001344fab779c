"""Texts on which tokenizers differ, by what they try: each tokenizer must give llama.cpp's ids."""

TEXTS = (
    # empty, spaces, line ends
    "", " ", "  ", "   ", "        ", "a b", "a  b", " a", "a ", "  a  b   c    ",
    "\n", "\n\n", "\r\n", "a\nb", "a\n\n\nb\n", "\t", "\t\tx = 1\n\ty", " \n \n", "line\r\nline\r",
    # words, case, punctuation, contractions
    "Hello", " Hello", "Hello, world!", "HELLO hello HeLLo", "Once upon a time, there was a girl.",
    "I'm sure they'll say it's what we've DON'T'd; THEY'RE, he's", "'tis 'Twas ''quoted''",
    "well-known e.g. i.e. etc...", "!!??!!", "(a[b]{c}<d>)", "\"'`´’“”«»", "a_b-c=d&e#f@g%h^i*j",
    "https://example.com/a_b?c=d&e=f#g-h", "supercalifragilisticexpialidocious",
    # digits
    "0", "1234567890", "3.14159", "1,000,000.00", "v1.2.3-rc4", "0x1F 1e-5 2^10", "1 22 333 4444",
    "Ⅷ ½ ² ③ 12٣٤५", "$4.99 (50%)",
    # code
    "def f(a, b):\n    return {a: b[0]}\n", "if (x<y && y>z || !w) { a+=b; } // ok",
    # accents, Greek, Cyrillic, right to left
    "café déjà vu, Müller, piñata", "e\u0301 is not é; \ufb01 is a ligature", "ΑΒΓ αβγ ς",
    "Привет, мир!", "שלום עולם", "مرحبا بالعالم", "i̇stanbul İSTANBUL ı",
    # CJK, Korean, Thai, Devanagari, Tamil
    "日本語のテキスト。", "中文字符,没有空格", "한국어 문장입니다", "김", "สวัสดีชาวโลก", "नमस्ते दुनिया",
    "क्षत्रिय १२३", "வணக்கம்",
    # emoji: one, joined, with a modifier, flags
    "🎉", "a🎉b 🎉🎉", "👩\u200d👩\u200d👧\u200d👦", "👍🏽", "🇫🇷🇩🇪", "❤️ ☃ ✓", "𝔘𝔫𝔦𝔠𝔬𝔡𝔢",
    # invisible and control characters
    "no\u00a0break", "wide\u3000space", "zero\u200bwidth\ufeff", "a\u2028b\u2029c", "\x00", "a\x00b",
    "\x01\x02\x1b[0m\x7f", "\x80\x9f", "bell\a and form\f feed\v",
    # special tokens inside text, and what only looks like them
    "<s>", "</s>", "<s>Hello</s>", "<unk>", "<0x0A>", "<|endoftext|>", "a<|im_end|>b",
    "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n", "a<|im_end|><|im_end|> b <|im_end",
    "<|im_start", "</s", "< s>", "▁", "a▁b ▁ ▁▁", "Ġthe Ċ",
    # long runs
    "a" * 100, "ab" * 60, " " * 100, "\n" * 40, "=" * 80, "é" * 50, "日" * 30,
)  # fmt: skip
