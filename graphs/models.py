"""Published transformer layers that the zoo is made of: their shapes and where these come from."""

from __future__ import annotations

from dataclasses import dataclass

_GPT3 = "GPT-3 paper (arXiv 2005.14165), table 2.1"
_TILEFLOW = "TileFlow (MICRO 2023) attention set"
_BERT_FFN = "FFN 4 x hidden, gelu, as in BERT (arXiv 1810.04805)"
_GPT3_BLOCK = "layernorm before attention and before the FFN, as in GPT-2 (section 2.1)"
_BERT_BLOCK = "layernorm behind each residual sum, as in the original Transformer (arXiv 1706.03762)"
_VIT = "ViT (arXiv 2010.11929)"
_VIT_FFN = f"FFN 4 x hidden, gelu, as in {_VIT}"


@dataclass(frozen=True, slots=True)
class Layer:
    """One transformer layer as it is run.

    Parameters
    ----------
    title : str
        The model's name, for people.
    tokens : int
        Tokens of one sequence; also the length of the KV cache in decoding.
    width : int
        Model width in elements; the head dim is ``width // heads``.
    heads : int
        Query heads.
    hidden : int
        Hidden width of the feed-forward block in elements.
    source : str
        Where the sizes come from.
    kv_heads : int, optional
        Key and value heads; as many as ``heads`` if left out.
    function : str
        Activation of the feed-forward block.
    gated : bool
        Whether the activation gates a second projection.
    norm : str
        layernorm or rmsnorm.
    form : str
        Where the norms stand: "pre" (before attention and before the feed-forward block), "post"
        (after each residual sum) or "parallel" (one norm feeds both, and both add to the input).
    rope : bool
        Whether queries and keys are rotated by their positions.
    experts : int
        Feed-forward blocks to choose from, 1 if there is no choice.
    active : int
        How many of them a token goes through.
    """

    title: str
    tokens: int
    width: int
    heads: int
    hidden: int
    source: str
    kv_heads: int | None = None
    function: str = "gelu"
    gated: bool = False
    norm: str = "layernorm"
    form: str = "pre"
    rope: bool = False
    experts: int = 1
    active: int = 1

    @property
    def head_dim(self) -> int:
        """Elements of one head's vectors.

        >>> LAYERS["vit-h14"].head_dim
        80
        """
        return self.width // self.heads


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentLayer(Layer):
    """A layer with multi-head latent attention (MLA).

    Parameters
    ----------
    query_latent, latent : int
        Elements of the vectors that queries, and keys and values, are compressed to.
    nope_dim, rope_dim : int
        Elements of one head's query and key without and with a position.
    value_dim : int
        Elements of one head's value.
    """

    query_latent: int
    latent: int
    nope_dim: int
    rope_dim: int
    value_dim: int

    @property
    def head_dim(self) -> int:
        """Elements of one head's query and key, both parts.

        >>> DEEPSEEK_V3.head_dim
        192
        """
        return self.nope_dim + self.rope_dim


def _tileflow(title: str, heads: int, tokens: int, width: int) -> Layer:
    """One line of TileFlow's attention set: heads, sequence length, hidden size."""
    like = _BERT_FFN if title.startswith("BERT") else _VIT_FFN
    source = f"{_TILEFLOW}: {heads} heads, {tokens} tokens, hidden {width}; {like}"
    form = "post" if title.startswith("BERT") else "pre"
    return Layer(title, tokens, width, heads, 4 * width, source, form=form)


def _vit_197(size: str, heads: int, width: int) -> Layer:
    """Build a ViT with patches of 16 at 224 pixels, the class token counted."""
    source = (
        f"{_VIT}: sizes of ViT-{size}; 224 x 224 pixels in patches of 16 are 14 x 14 tokens, "
        "and the class token; FFN 4 x hidden, gelu"
    )
    return Layer(f"ViT-{size}/16 with class token", 197, width, heads, 4 * width, source)


# Keyed by the first part of the zoo's names.
LAYERS: dict[str, Layer] = {
    "gpt3-6.7b": Layer(
        "GPT-3 6.7B",
        tokens=2048,
        width=4096,
        heads=32,
        hidden=16384,
        source=f"{_GPT3}: d 4096, 32 heads of 128, context 2048; FFN 4 x d, gelu",
    ),
    "gpt3-13b": Layer(
        "GPT-3 13B",
        tokens=2048,
        width=5120,
        heads=40,
        hidden=20480,
        source=f"{_GPT3}: 40 heads of 128, context 2048; d 5120 = 40 x 128, which the table prints "
        "as 5140; FFN 4 x d, gelu",
    ),
    "bert-s": _tileflow("BERT-S", 8, 512, 512),
    "bert-b": _tileflow("BERT-B", 12, 512, 768),
    "bert-l": _tileflow("BERT-L", 16, 512, 1024),
    "vit-b14": _tileflow("ViT-B/14", 12, 256, 768),
    "vit-l14": _tileflow("ViT-L/14", 16, 256, 1024),
    "vit-h14": _tileflow("ViT-H/14", 16, 256, 1280),
    "vit-b16": _tileflow("ViT-B/16", 12, 196, 768),
    "vit-l16": _tileflow("ViT-L/16", 16, 196, 1024),
    "vit-h16": _tileflow("ViT-H/16", 16, 196, 1280),
    "vit-b16-197": _vit_197("B", 12, 768),
    "vit-l16-197": _vit_197("L", 16, 1024),
    "vit-h16-197": _vit_197("H", 16, 1280),
    "palm-62b": Layer(
        "PaLM 62B",
        tokens=2048,
        width=8192,
        heads=32,
        hidden=32768,
        source="PaLM (arXiv 2204.02311): d 8192, 32 heads of 256 on one KV head (multi-query), "
        "FFN 4 x d, SwiGLU, sequences of 2048",
        kv_heads=1,
        function="silu",
        gated=True,
        form="parallel",
        rope=True,
    ),
    "llama3-8b": Layer(
        "Llama 3 8B",
        tokens=2048,
        width=4096,
        heads=32,
        hidden=14336,
        source="Llama 3 (arXiv 2407.21783): d 4096, 32 heads, 8 KV heads, FFN 14336, SwiGLU; "
        "2048 tokens chosen to match the other language models here",
        kv_heads=8,
        function="silu",
        gated=True,
        norm="rmsnorm",
        rope=True,
    ),
}

MIXTRAL_8X7B = Layer(
    "Mixtral 8x7B",
    tokens=2048,
    width=4096,
    heads=32,
    hidden=14336,
    source="Mixtral of Experts (arXiv 2401.04088), table 1: dim 4096, 32 heads of 128, 8 KV heads, hidden "
    "14336, 8 experts of which a token takes 2; 2048 tokens chosen to match the other language models here",
    kv_heads=8,
    function="silu",
    gated=True,
    norm="rmsnorm",
    rope=True,
    experts=8,
    active=2,
)

DEEPSEEK_V3 = LatentLayer(
    "DeepSeek-V3",
    tokens=4096,
    width=7168,
    heads=128,
    hidden=18432,
    source="DeepSeek-V3 (arXiv 2412.19437), section 4.2, and its config.json: d 7168, 128 heads, latent 512 "
    "for keys and values and 1536 for queries, per head 128 without and 64 with RoPE, values of 128; dense "
    "FFN 18432 in the first three layers, SwiGLU; 4096 tokens chosen",
    function="silu",
    gated=True,
    norm="rmsnorm",
    rope=True,
    query_latent=1536,
    latent=512,
    nope_dim=128,
    rope_dim=64,
    value_dim=128,
)

# Which layers are also listed as whole blocks, and where their structure is described.
WHOLE: dict[str, str] = {
    "gpt3-6.7b": _GPT3_BLOCK,
    "gpt3-13b": _GPT3_BLOCK,
    "bert-b": _BERT_BLOCK,
    "bert-l": _BERT_BLOCK,
    "vit-b16-197": "layernorm before attention and before the FFN (figure 1)",
    "palm-62b": "parallel block, one layernorm before both halves, RoPE (section 2)",
    "llama3-8b": "RMSNorm before attention and before the FFN, RoPE",
}

# Which parts of which layers are also listed in decoding: one token, a cache of ``tokens``.
DECODED: dict[str, tuple[str, ...]] = {
    "gpt3-6.7b": ("attention", "ffn", "block"),
    "gpt3-13b": ("block",),
    "palm-62b": ("attention", "block"),
    "llama3-8b": ("attention", "ffn", "block"),
}
