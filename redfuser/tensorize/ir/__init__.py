"""The tile IR: its nodes and their text, reading it back, what holds of every program, and what a program computes.

    str(program) <-> parse(text)        verify(program) -> what is wrong        interpret.run(program, inputs)
"""
