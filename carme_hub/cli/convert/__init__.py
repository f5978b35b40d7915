"""`carme-hub convert`: another program's configuration read, without running it, and Carme Hub's written.

``reading`` reads files: a jupyterhub_config.py (``config_file``, with the values of ``expressions``), a batch script
(``shell``), an app of Open OnDemand (``ondemand_app``). ``mapping`` says what becomes of each setting, one module for
each program we come from; ``site`` is what they fill. ``writing`` writes it. ``command`` is the command.
"""
