"""Server of OpenAI's API over the core's passes, for editors and local agents.

`requests` reads the bodies of requests into `job.Asked`, `engine` computes jobs together in one
thread, `slots` keeps the keys and values of finished ones, `pieces` splits texts into reasoning,
content and calls, `infill` writes prompts with a gap, `replies` writes answers, `ollama`
translates another API, and `app` has the routes.
"""
