from scrimp.cli import main

main()
