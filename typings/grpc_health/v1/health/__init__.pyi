from . import aio as aio
