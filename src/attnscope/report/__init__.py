"""Tables to pictures: the terminal summary, the charts and the page. Knows only tables and findings."""
