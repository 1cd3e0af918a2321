"""The grammar of outer graphs: what is computed passes, what could do anything else does not."""

from __future__ import annotations

import pytest

from redfuser.errors import ArtifactError
from redfuser.runtime.guard import check_graph

GOOD = '''
def forward(x0, x1):
    v1 = F.linear(x0, w)
    v2 = F.scaled_dot_product_attention(v1, v1, v1, is_causal=True, scale=0.25)
    v3 = torch.where(v2 > 0.5, torch.full((), 1.0, dtype=torch.float32, device=device), float("-inf"))
    del v1, v2
    v4, v5 = k_attn_0(v3, x1)
    v6 = torch.ops.aten.histc.default(v4, 10)
    v7 = v4.reshape((2, -1))[:, 0:4].to(torch.float16) * -3 + v5 % 2
    v8 = torch.matmul(v7, v7).clone(memory_format=torch.contiguous_format)
    v9 = torch.arange(0, 4, 1, dtype=torch.int64, device=device)
    v10 = torch.ops.aten.split_with_sizes.default(torch.div(v8, 2, rounding_mode="trunc"), [1, 1], 0)
    v11 = torch.topk(v8, 2, 1).values
    return (v10[0], v6, v9, v11)
'''

BAD = {
    "import": "    import os\n    return (x,)",
    "import name": "    y = __import__('os')\n    return (y,)",
    "eval": "    y = eval('1')\n    return (y,)",
    "open": "    y = open('/etc/passwd')\n    return (y,)",
    "getattr": "    y = getattr(x, 'data')\n    return (y,)",
    "torch.load": "    y = torch.load('f')\n    return (y,)",
    "torch.save": "    torch.save(x, 'f')\n    return (x,)",
    "torch.from_file": "    y = torch.from_file('f', True, 4)\n    return (y,)",
    "aten.from_file": "    y = torch.ops.aten.from_file.default('f')\n    return (y,)",
    "load_library": "    y = torch.ops.load_library('f')\n    return (y,)",
    "classes": "    y = torch.classes.load_library('f')\n    return (y,)",
    "hub": "    y = torch.hub.load('a', 'b')\n    return (y,)",
    "other operators": "    y = torch.ops.image.write_file.default('f', x)\n    return (y,)",
    "extension": "    y = torch.utils.cpp_extension.load_inline('a', 'b')\n    return (y,)",
    "dunder": "    y = x.__class__\n    return (y,)",
    "dunder call": "    y = x.__reduce__()\n    return (y,)",
    "torch module": "    y = torch\n    return (y,)",
    "function as a value": "    y = torch.load\n    return (y,)",
    "method not an operator": "    y = x.numpy()\n    return (y,)",
    "register_hook": "    y = x.register_hook(k)\n    return (y,)",
    "apply_": "    y = x.apply_(k)\n    return (y,)",
    "lambda": "    y = (lambda: 1)()\n    return (y,)",
    "comprehension": "    y = [t for t in x]\n    return (y,)",
    "f-string": "    y = f'{x}'\n    return (y,)",
    "loop": "    while True:\n        pass\n    return (x,)",
    "with": "    with x:\n        pass\n    return (x,)",
    "global": "    global y\n    return (x,)",
    "attribute target": "    x.data = x\n    return (x,)",
    "item target": "    x[0] = 1\n    return (x,)",
    "shadow torch": "    torch = x\n    return (x,)",
    "shadow kernel": "    k = x\n    return (x,)",
    "unknown name": "    y = z\n    return (y,)",
    "unknown function": "    y = z(x)\n    return (y,)",
    "call a call": "    y = k(x)(x)\n    return (y,)",
    "star": "    y = k(**x)\n    return (y,)",
    "nested function": "    def g():\n        return 1\n    return (x,)",
    "walrus": "    y = (z := x)\n    return (y,)",
    "dispatch": "    y = F.boolean_dispatch(k, 0, 0, False, k, k, 'a', 'b')\n    return (y,)",
    "bare return": "    return",
    "return in the middle": "    return (x,)\n    return (x,)",
    "no tuple": "    return x",
    "a power": "    y = 9**9**9\n    return (x,)",
    "a matrix product sign": "    y = x @ x\n    return (y,)",
    "_reshape_alias": "    y = torch.ops.aten._reshape_alias.default(x, [99], [1])\n    return (y,)",
    "_reshape_alias as a function": "    y = torch._reshape_alias(x, [99], [1])\n    return (y,)",
    "as_strided": "    y = x.as_strided([99], [1])\n    return (y,)",
    "set_": "    y = x.set_(x)\n    return (y,)",
    "resize_": "    y = x.resize_([99])\n    return (y,)",
    "_unsafe_index_put": "    y = torch.ops.aten._unsafe_index_put.default(x, [x], x)\n    return (y,)",
    "in place": "    y = x.add_(1)\n    return (y,)",
    "empty": "    y = torch.empty((9,), device=device)\n    return (y,)",
    "a shape": "    y = x.shape\n    return (y,)",
    "a device": "    y = x.device\n    return (y,)",
    "storage": "    y = x.untyped_storage()\n    return (y,)",
    "item": "    y = x.item()\n    return (x,)",
    "out": "    y = torch.ops.aten.atan2.out(x, x, out=x)\n    return (y,)",
    "a starred operand": "    y = torch.abs(*x)\n    return (y,)",
    "None index": "    y = x[...]\n    return (y,)",
    "bytes": "    y = torch.abs(b'x')\n    return (y,)",
    "a large number": "    y = x + 0x" + "f" * 40 + "\n    return (y,)",
    "float of a name": "    y = float(x)\n    return (x,)",
    "not": "    y = not x\n    return (x,)",
    "two comparisons": "    y = 1 < x < 2\n    return (x,)",
    "negated tensor": "    y = -x\n    return (y,)",
    "two targets": "    y = z = x\n    return (y,)",
    "deleted": "    y = x + 1\n    del y\n    return (y,)",
    "dunder result": "    __import__ = x\n    return (x,)",
    "a chain": "    y = x" + " + x" * 100 + "\n    return (y,)",
}


def test_a_graph_passes() -> None:
    check_graph(GOOD, {"w", "k_attn_0"})


@pytest.mark.parametrize("name", BAD)
def test_anything_else_is_refused(name: str) -> None:
    with pytest.raises(ArtifactError, match="RF606"):
        check_graph(f"def forward(x):\n{BAD[name]}\n", {"k"})


@pytest.mark.parametrize("source", [
    "", "x = 1", "def forward():\n    pass", '"""text"""\ndef forward(x):\n    return (x,)', "async def forward(x):\n    return (x,)", "import os\ndef forward(x):\n    return (x,)", "def forward(x=print()):\n    return (x,)",
    "@k\ndef forward(x):\n    return (x,)", "def forward(*x):\n    return (x,)", "def forward(x: k):\n    return (x,)",
    "def other(x):\n    return (x,)", "def forward(torch):\n    return (torch,)", "def forward(x):\n    return (x,)\nk()",
    "class A: pass", "def forward(x) -> k:\n    return (x,)", "\0", "def forward(x):\n    return " + "(" * 5000,
    "def forward(x):\n    return " + "-" * 20000 + "x"])
def test_modules_that_are_not_a_graph(source: str) -> None:
    with pytest.raises(ArtifactError, match="RF606"):
        check_graph(source, {"k"})
