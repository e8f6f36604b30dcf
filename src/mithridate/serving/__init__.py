"""Predictions with certificates over HTTP: a finished run that stays loaded, and what guards it.

`service` answers questions and knows no HTTP; `claims` counts what a random method may still claim; `app` is the door,
`running` the processes behind it. FastAPI and uvicorn are imported by the last two alone.
"""
