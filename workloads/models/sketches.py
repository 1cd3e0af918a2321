"""Nine more models as a research engineer writes them from memory: a delta rule in chunks, a selective scan of running sums,
streams that mix through Sinkhorn's steps, chosen blocks of keys, chosen tokens, an alignment with its pairs, a ranker of
clicks, messages along edges, a flow of splines."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from workloads.case import Case, Inputs, normal
from workloads.models.mixing import RMSNorm, Stack, heads_of, merged
from workloads.models.written import Written


class GatedDelta(nn.Module):
    """Gated DeltaNet (2412.06464) of x [b, l, n] in chunks of c: a triangular solve within one, a loop over them."""

    def __init__(self, n: int, heads: int, c: int = 64) -> None:
        super().__init__()
        self.heads, self.c = heads, c
        self.norm, self.head_norm = RMSNorm(n), RMSNorm(n // heads)
        self.qkv, self.conv = nn.Linear(n, 3 * n, bias=False), nn.Conv1d(3 * n, 3 * n, 4, groups=3 * n, padding=3)
        self.gates, self.gate, self.out = nn.Linear(n, 2 * heads), nn.Linear(n, n, bias=False), nn.Linear(n, n, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        b, l, n = x.shape
        h = self.norm(x)
        qkv = F.silu(self.conv(self.qkv(h).transpose(1, 2))[..., :l]).transpose(1, 2)
        q, k, v = (y.reshape(b, l // self.c, self.c, self.heads, -1).permute(0, 3, 1, 2, 4).float() for y in qkv.chunk(3, -1))
        q, k = F.normalize(q, dim=-1) * (n // self.heads) ** -0.5, F.normalize(k, dim=-1)
        beta, a = self.gates(h).float().view(b, l // self.c, self.c, 2, self.heads).permute(3, 0, 4, 1, 2)
        beta, a = torch.sigmoid(beta)[..., None], -F.softplus(a - 2).cumsum(-1)
        ratio = (a[..., :, None] - a[..., None, :]).tril().exp().tril()
        eye = torch.eye(self.c, device=x.device)
        inverse = torch.linalg.solve_triangular(eye + ((k * beta) @ k.mT * ratio).tril(-1), eye, upper=False)
        u, w = inverse @ (v * beta), inverse @ (k * beta * a.exp()[..., None])
        inside, state, rows = q @ k.mT * ratio, torch.zeros_like(k[:, :, 0].mT @ v[:, :, 0]), []
        for i in range(l // self.c):
            new = u[:, :, i] - w[:, :, i] @ state
            rows.append((q[:, :, i] * a[:, :, i, :, None].exp()) @ state + inside[:, :, i] @ new)
            last = a[:, :, i, -1:, None]
            state = state * last.exp() + (k[:, :, i] * (last - a[:, :, i, :, None]).exp()).mT @ new
        y = self.head_norm(torch.stack(rows, 2).permute(0, 2, 3, 1, 4)).reshape(b, l, n).type_as(x)
        return x + self.out(y * F.silu(self.gate(h)))


class Selective(nn.Module):
    """Mamba (2312.00752) of x [b, l, n]: the scan as two running sums in chunks of c, the state in a loop over them."""

    def __init__(self, n: int, states: int = 16, c: int = 64) -> None:
        super().__init__()
        e, rank = 2 * n, n // 16
        self.states, self.rank, self.c = states, rank, c
        self.norm, self.into, self.out = RMSNorm(n), nn.Linear(n, 2 * e, bias=False), nn.Linear(e, n, bias=False)
        self.conv, self.said = nn.Conv1d(e, e, 4, groups=e, padding=3), nn.Linear(e, rank + 2 * states, bias=False)
        self.step, self.log_a, self.skip = nn.Linear(rank, e), nn.Parameter(torch.zeros(e, states)), nn.Parameter(torch.ones(e))

    def forward(self, x: Tensor) -> Tensor:
        l = x.shape[1]
        u, z = self.into(self.norm(x)).chunk(2, -1)
        u = F.silu(self.conv(u.transpose(1, 2))[..., :l].transpose(1, 2))
        dt, b, c = self.said(u).split([self.rank, self.states, self.states], -1)
        dt = F.softplus(self.step(dt).float() - 4)
        decay = dt[..., None] * -torch.exp(self.log_a.float())
        given = (dt * u.float())[..., None] * b.float()[:, :, None]
        state, rows = torch.zeros_like(given[:, 0]), []
        for at in range(0, l, self.c):
            run = decay[:, at:at + self.c].cumsum(1)
            left = torch.exp(run[:, -1:] - run)
            h = (given[:, at:at + self.c] * left).cumsum(1) / (left + 1e-12) + torch.exp(run) * state[:, None]
            rows.append(torch.einsum("bles,bls->ble", h, c[:, at:at + self.c].float()))
            state = h[:, -1]
        y = torch.cat(rows, 1) + u.float() * self.skip.float()
        return x + self.out(y.type_as(x) * F.silu(z))


class Streams(nn.Module):
    """Hyper-connections whose mixture Sinkhorn's steps make doubly stochastic (2512.24880), around attention and around SwiGLU:
    x [b, l, s, n]."""

    def __init__(self, n: int, heads: int, s: int = 4) -> None:
        super().__init__()
        self.heads, self.s = heads, s
        self.said = nn.ModuleList(nn.Linear(s * n, 2 * s + s * s) for _ in range(2))
        self.norms = nn.ModuleList([RMSNorm(n), RMSNorm(n)])
        self.qkv, self.o = nn.Linear(n, 3 * n, bias=False), nn.Linear(n, n, bias=False)
        self.up, self.down = nn.Linear(n, 8 * n, bias=False), nn.Linear(4 * n, n, bias=False)

    def attend(self, x: Tensor) -> Tensor:
        q, k, v = (heads_of(y, self.heads) for y in self.qkv(x).chunk(3, -1))
        return self.o(merged(F.scaled_dot_product_attention(q, k, v, is_causal=True)))

    def feed(self, x: Tensor) -> Tensor:
        a, g = self.up(x).chunk(2, -1)
        return self.down(F.silu(g) * a)

    def forward(self, x: Tensor) -> Tensor:
        for i, inner in enumerate((self.attend, self.feed)):
            flat = x.flatten(-2).float()
            said = self.said[i]((flat * torch.rsqrt(flat.pow(2).mean(-1, keepdim=True) + 1e-6)).type_as(x)).float()
            read, write, mix = said.split([self.s, self.s, self.s**2], -1)
            mix = torch.exp(mix.unflatten(-1, (self.s, self.s)))
            for _ in range(10):
                mix = mix / mix.sum(-1, keepdim=True)
                mix = mix / mix.sum(-2, keepdim=True)
            y = inner(self.norms[i](torch.einsum("bls,blsn->bln", torch.sigmoid(read), x.float()).type_as(x)))
            x = (mix @ x.float() + 2 * torch.sigmoid(write)[..., None] * y.float()[:, :, None]).type_as(x)
        return x


class Chosen(nn.Module):
    """Native sparse attention (2502.11089) of x [b, l, n]: pooled blocks, the best of them in full, a window; gates between."""

    def __init__(self, n: int, heads: int, groups: int, block: int = 64, best: int = 4, window: int = 128) -> None:
        super().__init__()
        self.heads, self.groups, self.block, self.best, self.window = heads, groups, block, best, window
        d = n // heads
        self.norm, self.q, self.kv = RMSNorm(n), nn.Linear(n, n, bias=False), nn.Linear(n, 2 * groups * d, bias=False)
        self.pool_k, self.pool_v = (nn.Linear(block * d, d, bias=False) for _ in range(2))
        self.gate, self.o = nn.Linear(n, 3 * heads), nn.Linear(n, n, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        b, l, n = x.shape
        g, d, t, far = self.groups, n // self.heads, self.block, float("-inf")
        h = self.norm(x)
        q = self.q(h).view(b, l, g, self.heads // g, d).permute(0, 2, 3, 1, 4) * d**-0.5
        k, v = (y.view(b, l, g, d).transpose(1, 2) for y in self.kv(h).chunk(2, -1))
        at = torch.arange(l, device=x.device)
        ends = torch.arange(l // t, device=x.device) * t
        pk, pv = (f(y.reshape(b, g, l // t, t * d)) for f, y in ((self.pool_k, k), (self.pool_v, v)))
        s = (q @ pk[:, :, None].mT).float().masked_fill(ends[None, :] > at[:, None], far)
        p = torch.softmax(s, -1)
        coarse = p.type_as(x) @ pv[:, :, None]
        own = (at // t)[:, None] == torch.arange(l // t, device=x.device)
        chosen = (p.sum(2) + own * 1e4).topk(self.best, -1).indices
        blocks = chosen[..., None].expand(-1, -1, -1, -1, t * d).flatten(2, 3)
        ck, cv = (y.reshape(b, g, l // t, t * d).gather(2, blocks).view(b, g, l, self.best * t, d) for y in (k, v))
        places = (chosen[..., None] * t + torch.arange(t, device=x.device)).flatten(-2)
        s = torch.einsum("bghld,bglkd->bghlk", q, ck).float()
        s = s.masked_fill((places > at[:, None])[:, :, None], far)
        fine = torch.einsum("bghlk,bglkd->bghld", torch.softmax(s, -1).type_as(x), cv)
        back = at[:, None] - at[None, :]
        s = (q @ k[:, :, None].mT).float().masked_fill((back < 0) | (back >= self.window), far)
        near = torch.softmax(s, -1).type_as(x) @ v[:, :, None]
        gates = torch.sigmoid(self.gate(h)).view(b, l, 3, g, self.heads // g).permute(2, 0, 3, 4, 1)[..., None]
        y = gates[0] * coarse + gates[1] * fine + gates[2] * near
        return x + self.o(y.permute(0, 3, 1, 2, 4).reshape(b, l, n))


class Depths(nn.Module):
    """Mixture of depths (2404.02258) of x [b, l, n]: a block of the best tokens by a router, in their order, added back."""

    def __init__(self, n: int, heads: int, best: int) -> None:
        super().__init__()
        self.heads, self.best, self.router = heads, best, nn.Linear(n, 1, bias=False)
        self.n1, self.n2, self.qkv, self.o = RMSNorm(n), RMSNorm(n), nn.Linear(n, 3 * n), nn.Linear(n, n)
        self.up, self.down = nn.Linear(n, 4 * n), nn.Linear(4 * n, n)

    def forward(self, x: Tensor) -> Tensor:
        b, _, n = x.shape
        weights = self.router(x)[..., 0]
        kept = weights.topk(self.best, -1, sorted=False).indices.sort(-1).values
        at = kept[..., None].expand(-1, -1, n)
        h = y = x.gather(1, at)
        q, k, v = (heads_of(z, self.heads) for z in self.qkv(self.n1(y)).chunk(3, -1))
        scores = (q @ k.mT).float() * q.shape[-1] ** -0.5
        scores = scores.masked_fill(kept[:, None, :, None] < kept[:, None, None, :], float("-inf"))
        h = h + self.o(merged(torch.softmax(scores, -1).type_as(x) @ v))
        h = h + self.down(F.gelu(self.up(self.n2(h))))
        gain = torch.sigmoid(weights.gather(1, kept)).view(b, -1, 1)
        return x.scatter_add(1, at, gain * (h - y))


class Alignment(nn.Module):
    """A block of an alignment m [s, r, c] and its pairs z [r, r, p] (AlphaFold 2): gated attention along rows with the pairs'
    bias and along columns, the outer product's mean, a transition."""

    def __init__(self, c: int, p: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.m1, self.m2, self.m3, self.z1, self.z2 = (nn.LayerNorm(i) for i in (c, c, c, p, p))
        self.qkvg = nn.ModuleList(nn.Linear(c, 4 * c) for _ in range(2))
        self.o = nn.ModuleList(nn.Linear(c, c) for _ in range(2))
        self.bias, self.ab, self.outer = nn.Linear(p, heads, bias=False), nn.Linear(c, 64), nn.Linear(32 * 32, p)
        self.up, self.down = nn.Linear(p, 4 * p), nn.Linear(4 * p, p)

    def attend(self, i: int, m: Tensor, bias: Tensor | None) -> Tensor:
        q, k, v, g = self.qkvg[i](m).chunk(4, -1)
        q, k, v = (heads_of(y, self.heads) for y in (q, k, v))
        a = torch.einsum("shqd,shkd->shqk", q * q.shape[-1] ** -0.5, k)
        a = torch.softmax((a if bias is None else a + bias).float(), -1).type_as(m)
        return self.o[i](torch.sigmoid(g) * merged(torch.einsum("shqk,shkd->shqd", a, v)))

    def forward(self, m: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
        m = m + self.attend(0, self.m1(m), self.bias(self.z1(z)).permute(2, 0, 1))
        m = m + self.attend(1, self.m2(m.transpose(0, 1)), None).transpose(0, 1)
        a, b = self.ab(self.m3(m)).chunk(2, -1)
        z = z + self.outer(torch.einsum("sic,sjd->ijcd", a, b).flatten(-2) / m.shape[0])
        return m, z + self.down(F.relu(self.up(self.z2(z))))


class Aligned(nn.Module):
    def __init__(self, layers: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Alignment(256, 128, 8) for _ in range(layers))

    def forward(self, m: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
        for block in self.blocks:
            m, z = block(m, z)
        return m, z


class Ranker(nn.Module):
    """A ranker of clicks: a history read by what is offered (DIN, 1706.06978), low-rank crosses by experts (DCN-v2,
    2008.13535), PReLU and batch norms beside them. Dense [b, m], ids [b, t] with the offer's first, a history [b, h] where 0 is
    nothing."""

    def __init__(self, m: int, tables: int, rows: int, n: int, experts: int = 4, rank: int = 64) -> None:
        super().__init__()
        self.tables, width = nn.ModuleList(nn.Embedding(rows, n) for _ in range(tables)), m + (tables + 1) * n
        self.weigh = nn.Sequential(nn.Linear(4 * n, 64), nn.PReLU(), nn.Linear(64, 1))
        self.v, self.u = (nn.ParameterList(torch.zeros(experts, *s) for _ in range(3)) for s in ((width, rank), (rank, width)))
        self.c, self.b = (nn.ParameterList(torch.zeros(*s) for _ in range(3)) for s in ((experts, rank, rank), (width,)))
        self.pick = nn.ModuleList(nn.Linear(width, experts) for _ in range(3))
        self.deep = nn.Sequential(nn.Linear(width, 512), nn.BatchNorm1d(512), nn.PReLU(), nn.Linear(512, 256),
                                  nn.BatchNorm1d(256), nn.PReLU())
        self.head = nn.Linear(width + 256, 1)

    def forward(self, dense: Tensor, ids: Tensor, history: Tensor) -> Tensor:
        every = [table(ids[:, i]) for i, table in enumerate(self.tables)]
        past, offer = self.tables[0](history), every[0][:, None].expand(-1, history.shape[1], -1)
        w = self.weigh(torch.cat((past, offer, past - offer, past * offer), -1))[..., 0]
        w = torch.softmax(w.masked_fill(history == 0, -1e9), -1)
        x = first = torch.cat((torch.sign(dense) * torch.log1p(dense.abs()), *every, (w[:, None] @ past)[:, 0]), -1)
        for v, c, u, b, pick in zip(self.v, self.c, self.u, self.b, self.pick, strict=True):
            low = torch.tanh(torch.einsum("ber,ers->bes", torch.tanh(torch.einsum("bi,eir->ber", x, v)), c))
            crossed = first[:, None] * (torch.einsum("ber,eri->bei", low, u) + b)
            x = x + (torch.softmax(pick(x), -1)[..., None] * crossed).sum(1)
        return torch.sigmoid(self.head(torch.cat((x, self.deep(first)), -1)))[:, 0]


class Messages(nn.Module):
    """GATv2 (2105.14491) with edges' features, as who has no library of graphs writes it: nodes x [n, c], edges e [m, f] of
    ``ends`` [2, m]; a softmax over each node's edges by scattered maxima and sums."""

    def __init__(self, c: int, f: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm, self.source, self.target = nn.LayerNorm(c), nn.Linear(c, c), nn.Linear(c, c)
        self.edge, self.weigh, self.o = nn.Linear(f, c), nn.Parameter(torch.zeros(heads, c // heads)), nn.Linear(c, c)

    def forward(self, x: Tensor, e: Tensor, ends: Tensor) -> Tensor:
        h = self.norm(x)
        source, target = ends[0], ends[1]
        sent = self.source(h)[source].unflatten(-1, (self.heads, -1))
        met = sent + (self.target(h)[target] + self.edge(e)).unflatten(-1, (self.heads, -1))
        s = (F.leaky_relu(met, 0.2) * self.weigh).sum(-1)
        at = target[:, None].expand_as(s)
        most = torch.full((x.shape[0], self.heads), float("-inf"), device=x.device, dtype=x.dtype)
        most = most.scatter_reduce(0, at, s, "amax")
        p = torch.exp(s - most[target])
        total = torch.zeros_like(most).index_add(0, target, p)
        y = torch.zeros_like(h).index_add(0, target, ((p / (total[target] + 1e-9))[..., None] * sent).flatten(-2))
        return x + self.o(F.elu(y))


class Spline(nn.Module):
    """A coupling of a neural spline flow (1906.04032): half of x [b, 2 h] goes through monotone rational quadratics of ``bins``
    pieces on [-3, 3], said by the other half. The density's change is added to what comes along."""

    def __init__(self, h: int, hidden: int, bins: int = 8) -> None:
        super().__init__()
        self.bins = bins
        self.net = nn.Sequential(nn.Linear(h, hidden), nn.SiLU(), nn.Linear(hidden, hidden), nn.SiLU(),
                                 nn.Linear(hidden, h * (3 * bins - 1)))

    def forward(self, x: Tensor, change: Tensor) -> tuple[Tensor, Tensor]:
        a, y = x.chunk(2, -1)
        said = self.net(a).unflatten(-1, (y.shape[-1], -1))
        sizes = [torch.softmax(s, -1) * (1 - 1e-3 * self.bins) + 1e-3 for s in said[..., :2 * self.bins].chunk(2, -1)]
        knots = [F.pad(s.cumsum(-1), (1, 0)) * 6 - 3 for s in sizes]
        slopes = F.pad(F.softplus(said[..., 2 * self.bins:]) + 1e-3, (1, 1), value=1.0)
        inside = (y > -3) & (y < 3)
        v = y.clamp(-3, 3)
        k = ((v[..., None] >= knots[0]).sum(-1, keepdim=True) - 1).clamp(0, self.bins - 1)
        x0, x1, y0, y1, d0, d1 = (t.gather(-1, i)[..., 0] for t in (*knots, slopes) for i in (k, k + 1))
        s, t = (y1 - y0) / (x1 - x0), (v - x0) / (x1 - x0)
        under = s + (d0 + d1 - 2 * s) * t * (1 - t)
        moved = y0 + (y1 - y0) * (s * t**2 + d0 * t * (1 - t)) / under
        log = 2 * torch.log(s) + torch.log(d1 * t**2 + 2 * s * t * (1 - t) + d0 * (1 - t) ** 2) - 2 * torch.log(under)
        y = torch.where(inside, moved, y)
        return torch.cat((y, a), -1), change + torch.where(inside, log, 0.0).sum(-1)


class Flow(nn.Module):
    """The log-density of x [b, 2 h] under couplings of splines."""

    def __init__(self, h: int, hidden: int, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Spline(h, hidden) for _ in range(layers))

    def forward(self, x: Tensor) -> Tensor:
        change = torch.zeros_like(x[:, 0])
        for layer in self.layers:
            x, change = layer(x, change)
        return change - 0.5 * (x**2 + 1.8378770664).sum(-1)


def _clicks(device: str, seed: int) -> Inputs:
    g = torch.Generator(device).manual_seed(seed + 1)
    history = torch.randint(1, 100_000, (4096, 50), generator=g, device=device)
    lengths = torch.randint(5, 51, (4096, 1), generator=g, device=device)
    return (normal((4096, 13), "f32", device, seed).exp(), torch.randint(0, 100_000, (4096, 16), generator=g, device=device),
            history * (torch.arange(50, device=device) < lengths))


def _edges(device: str, seed: int) -> Inputs:
    g = torch.Generator(device).manual_seed(seed + 2)
    return (normal((16384, 256), "f32", device, seed), normal((131072, 32), "f32", device, seed + 1),
            torch.randint(0, 16384, (2, 131072), generator=g, device=device))


SKETCHES = (
    Written("gated-delta", "bf16", lambda: Stack(lambda: GatedDelta(1024, 8), 2), ((4, 512, 1024),),
            49_224_941_568, 10_551_584),
    Written("selective", "bf16", lambda: Stack(lambda: Selective(768), 2), ((2, 512, 768),), 15_426_797_568, 7_543_296),
    Written("streams", "bf16", lambda: Stack(lambda: Streams(1024, 16), 3), ((2, 1024, 4, 1024),), 234_847_469_568, 50_927_760),
    Written("chosen-blocks", "bf16", lambda: Stack(lambda: Chosen(1024, 16, 2), 2), ((2, 1024, 1024),),
            41_607_495_680, 5_867_616),
    Written("depths", "bf16", lambda: Stack(lambda: Depths(1024, 16, 512), 3), ((4, 2048, 1024),), 167_554_056_192, 37_785_600),
    Written("alignment", "bf16", lambda: Aligned(2), ((128, 256, 256), (256, 256, 128)),
            217_164_283_904, 1_880_704, whole=True, results=2),
    Written("ranker", "f32", lambda: Ranker(13, 16, 100_000, 32), ((4096, 13), (4096, 16), (4096, 50)),
            14_277_484_544, 1_340_769, _clicks),
    Written("messages", "f32", lambda: Stack(lambda: Messages(256, 32, 8), 3), ((16384, 256), (131072, 32), (2, 131072)),
            25_769_803_776, 619_776, _edges, whole=True),
    Written("spline-flow", "f32", lambda: Flow(32, 256, 4), ((16384, 64),), 34_359_738_368, 1_053_568),
)


def cases() -> list[Case]:
    return [replace(s.case(), sets=("unseen",)) for s in SKETCHES]
