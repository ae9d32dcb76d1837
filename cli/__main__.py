"""``python -m mmee_cli`` is ``mmee-solve``."""

from mmee_cli.solve import main

if __name__ == "__main__":
    main(prog_name="mmee-solve")
