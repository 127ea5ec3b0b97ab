"""Reports for people: one offline HTML page for a trace, a Perfetto export, and the parts other pages reuse.

:mod:`~stallproof.report.timeline` turns a trace into columns, :mod:`~stallproof.report.page` puts parts and
data into one self-contained HTML file, :mod:`~stallproof.report.tracepage` is the page of one trace. The
simulator builds its page from the same parts. A page loads nothing from anywhere; what comes from a trace
reaches it as data, never as markup.
"""
