"""From a cascade to its mergeable state, or a refusal: :func:`redfuser.acrf.derive.fuse.fuse` is the door. Nothing here is
believed; :mod:`redfuser.acrf.check` sees only what comes out."""
