"""The certificate's checker and its evaluators. It imports the expression IR, the state and their text, and nothing of what the
deriver uses: :func:`redfuser.acrf.check.verify.check` is the door."""

SOURCES = ("redfuser.acrf.check", "redfuser.acrf.expr", "redfuser.acrf.functions", "redfuser.acrf.once",
           "redfuser.acrf.cascade", "redfuser.acrf.state", "redfuser.acrf.text",
           "redfuser.acrf.syntax", "redfuser.acrf.scope", "redfuser.acrf.typed", "redfuser.acrf.tree",
           "redfuser.acrf.cursor", "redfuser.acrf.source", "redfuser.dtypes", "redfuser.errors", "redfuser.rule")
"""All that a verdict of the checker depends on (:func:`redfuser.verdicts.digest`); a test compares it with the imports."""
